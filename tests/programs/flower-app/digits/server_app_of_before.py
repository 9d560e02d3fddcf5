import numpy as np
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from digits.task import DIMENSIONS, rows_of, score


def mean_of(name: str):
    def mean(metrics):
        clients = sum(count for count, _ in metrics)
        return {name: sum(count * values[name] for count, values in metrics) / clients, "clients": float(len(metrics))}

    return mean


def on_server(server_round, parameters, config):
    loss, accuracy = score(parameters[0], *rows_of(99, 199, "validation"))
    return loss, {"accuracy": accuracy}


def server_fn(context: Context) -> ServerAppComponents:
    config = context.run_config
    strategy = FedAvg(
        fraction_fit=config["fraction-train"],
        initial_parameters=ndarrays_to_parameters([np.random.normal(size=DIMENSIONS + 1)]),
        evaluate_fn=on_server,
        fit_metrics_aggregation_fn=mean_of("loss"),
        evaluate_metrics_aggregation_fn=mean_of("accuracy"),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=config["num-server-rounds"]))


app = ServerApp(server_fn=server_fn)
