import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits.task import DIMENSIONS, rows_of, score

app = ServerApp()


class Counting(FedAvg):
    """FedAvg that also says how many clients have trained."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        if metrics is not None:
            metrics["clients"] = float(len(replies))
        return arrays, metrics


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config

    def on_server(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        x, y = rows_of(99, 199, "validation")
        return MetricRecord({"accuracy": score(arrays.to_numpy_ndarrays()[0], x, y)[1]})

    strategy = Counting(fraction_train=config["fraction-train"])
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.random.normal(size=DIMENSIONS + 1)]),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=on_server,
    )
    print("the server has ended with", {key: config[key] for key in sorted(config)})
