"""What canaries cost beside a round of the published model (4,050,748 parameters,
clients of 64 sentences).

    python -m benchmarks.canaries                        100 clients a round, 100 canaries
    python -m benchmarks.canaries --clients 10 --canaries 1000
    python -m benchmarks.canaries --small                a check of this program, measures nothing

Two executions in one process take turns on the same cohorts, one of them with canaries that do not
take part: in every round their products with the release are taken. A canary that takes part stands
where a client would; its cost is beside a client's.
"""

import statistics
import time

import click

from benchmarks.clients import random_sentences


@click.command()
@click.option("--clients", default=100, help="Clients a round.")
@click.option("--canaries", default=100, help="Canaries of the run.")
@click.option("--rounds", default=3, help="Rounds that are counted, after one that is not.")
@click.option("--small", is_flag=True, help="The demo's model and two clients.")
def main(clients: int, canaries: int, rounds: int, small: bool) -> None:
    """Prints seconds and shares."""
    import fedmf
    from fedmf.training.client_data import client_data
    from fedmf.training.execution.choice import build_execution

    clients = 2 if small else clients
    task = random_sentences("demo" if small else "full", clients)
    config = fedmf.TrainConfig(
        rounds=rounds + 1,
        cohort_size=clients,
        family="blt",
        schema="every_round",
        noise_multiplier=1.0,
    )
    plan = config.plan()
    cohort = [client_data(task, config, 0, client) for client in range(clients)]
    settings = (config, fedmf.TrainConfig(**{**vars(config), "canaries": canaries}))
    executions = [build_execution(task, plan, each, 1) for each in settings]
    states = [execution.init() for execution in executions]
    seconds: tuple[list[float], list[float]] = ([], [])
    for t in range(rounds + 1):
        for which in (0, 1) if t % 2 else (1, 0):
            began = time.perf_counter()
            release = executions[which].collect_release(states[which], cohort)
            states[which] = executions[which].step(states[which], release)
            seconds[which].append(time.perf_counter() - began)
    special, means = executions[1]._canaries, executions[1]._means  # type: ignore[attr-defined]
    mean, total = executions[1].weights(states[1]), means.empty_sum()
    sent = means.client_params(means.initial())
    projecting, adding = [], []
    for _ in range(11):
        began = time.perf_counter()
        special.projections(mean)
        projecting.append(time.perf_counter() - began)
        began = time.perf_counter()
        special.add(total, [0], sent)
        adding.append(time.perf_counter() - began)
    without, with_canaries = (statistics.median(each[1:]) for each in seconds)
    project, add = statistics.median(projecting), statistics.median(adding)
    click.echo(
        f"a round of {clients} clients      {without:.2f} s, with {canaries} canaries "
        f"{with_canaries:.2f} s"
    )
    click.echo(
        f"along all directions       {project:.4f} s a round, {100 * project / without:.2f}% of it"
    )
    click.echo(
        f"a canary in the cohort     {add:.4f} s, {100 * add * clients / without:.0f}% of a client"
    )


if __name__ == "__main__":
    main()
