"""A simulation in one process."""

import os
import random
import threading
import time
from types import SimpleNamespace

from flwr.common import Context
from flwr.server.superlink.linkstate import in_memory_linkstate


class Message:
    def __init__(self, kind, node, content, error=None):
        self.metadata = SimpleNamespace(message_type=kind, src_node_id=node, dst_node_id=node)
        self.content, self.error = content, error

    def has_error(self):
        return self.error is not None


class Grid:
    def __init__(self, client):
        self.client, self.contexts, self.replies = client, {}, []

    def register(self, clients):
        for partition in range(clients):
            time.sleep(0.01)
            node = in_memory_linkstate.generate_rand_int_from_bytes(8, exclude={0})
            self.contexts[node] = Context(node, {"partition-id": partition, "num-partitions": clients})

    def get_node_ids(self):
        ids = list(self.contexts)
        random.SystemRandom().shuffle(ids)
        return ids

    def push_messages(self, messages):
        for message in messages:
            node = message.metadata.dst_node_id
            try:
                content = self.client(message=message, context=self.contexts[node])
                self.replies.append(Message("", node, content))
            except Exception as error:
                reason = f"<class 'RayTaskError'>:<'a trace\n of lines\nException occurred. Message: {error}'>"
                self.replies.append(Message("", node, None, SimpleNamespace(reason=reason)))

    def pull_messages(self, ids):
        found, self.replies = self.replies, []
        random.SystemRandom().shuffle(found)
        return found

    def send_and_receive(self, messages, timeout=None):
        self.push_messages(messages)
        random.random()  # as another thread would
        return self.pull_messages([])[1 if timeout == 0 else 0 :]

    def send(self, kind, content, nodes=None):
        return self.send_and_receive([Message(kind, node, content) for node in nodes or self.get_node_ids()])


def run_simulation(server_app, client_app, num_supernodes, backend_config):
    asked = backend_config["init_args"]
    private = os.path.dirname(asked["_temp_dir"])  # which Ray does not open to everyone
    assert asked["address"] == "local" and os.stat(private).st_mode & 0o777 == 0o700
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == f"{private}/token" and os.path.getsize(f"{private}/token") == 64
    print("client", backend_config["client_resources"], "cpus", backend_config["init_args"].get("num_cpus"), flush=True)
    grid = Grid(client_app)
    threading.Thread(target=grid.register, args=(num_supernodes,)).start()
    server_app(grid=grid, context=Context(0, {}))
