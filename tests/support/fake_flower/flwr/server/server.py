"""The server of the strategies of before: results in any order."""

import random


class Proxy:
    def __init__(self, node):
        self.cid = str(node)


def _results(grid, kind, body):
    replies = [(Proxy(reply.metadata.src_node_id), reply.content) for reply in grid.send(kind, body)]
    random.SystemRandom().shuffle(replies)
    return replies, []


def fit_clients(grid, body):
    return _results(grid, "train", body)


def evaluate_clients(grid, body):
    return _results(grid, "evaluate", body)
