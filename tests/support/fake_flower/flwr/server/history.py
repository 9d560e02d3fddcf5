"""Where the strategies of before keep their metrics."""


class History:
    def __init__(self):
        self.kept = []

    def add_loss_distributed(self, server_round, loss):
        self.kept.append((server_round, loss))

    def add_loss_centralized(self, server_round, loss):
        self.kept.append((server_round, loss))

    def add_metrics_distributed_fit(self, server_round, metrics):
        self.kept.append((server_round, metrics))

    def add_metrics_distributed(self, server_round, metrics):
        self.kept.append((server_round, metrics))

    def add_metrics_centralized(self, server_round, metrics):
        self.kept.append((server_round, metrics))
