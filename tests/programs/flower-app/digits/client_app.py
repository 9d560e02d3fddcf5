import random

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import rows_of, score, train

app = ClientApp()


def own_rows(context: Context, part: str):
    return rows_of(context.node_config["partition-id"], context.node_config["num-partitions"], part)


@app.train()
def train_fn(msg: Message, context: Context) -> Message:
    if msg.content["config"]["server-round"] == context.run_config["fail-in-round"]:
        raise ValueError("a client that fails")
    x, y = own_rows(context, "train")
    (weights,) = msg.content["arrays"].to_numpy_ndarrays()
    weights = train(weights, x, y, context.run_config["lr"], context.run_config["local-steps"])
    loss, _ = score(weights, x, y)
    metrics = {"loss": loss, "clients": 1.0, "draw": random.random(), "num-examples": len(x)}
    content = RecordDict({"arrays": ArrayRecord([weights]), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate_fn(msg: Message, context: Context) -> Message:
    x, y = own_rows(context, "validation")
    (weights,) = msg.content["arrays"].to_numpy_ndarrays()
    loss, accuracy = score(weights, x, y)
    metrics = {"loss": loss, "accuracy": accuracy, "both": [loss, accuracy], "num-examples": len(x)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
