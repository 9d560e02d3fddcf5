from flwr.client import ClientApp, NumPyClient
from flwr.common import Context

from digits.task import rows_of, score, train


class Client(NumPyClient):
    def __init__(self, context: Context) -> None:
        self.place = context.node_config["partition-id"], context.node_config["num-partitions"]
        self.config = context.run_config

    def fit(self, parameters, config):
        x, y = rows_of(*self.place, "train")
        weights = train(parameters[0], x, y, self.config["lr"], self.config["local-steps"])
        return [weights], len(x), {"loss": score(weights, x, y)[0]}

    def evaluate(self, parameters, config):
        x, y = rows_of(*self.place, "validation")
        loss, accuracy = score(parameters[0], x, y)
        return loss, len(x), {"accuracy": accuracy}


def client_fn(context: Context):
    return Client(context).to_client()


app = ClientApp(client_fn=client_fn)
