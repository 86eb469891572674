"""A sweep on a cluster: every combination of mechanism and learning rate, each run a task of Ray.

Here the cluster is this machine. With machines of your own, leave out the two lines of Ray, and run
`fedmf sweep --cluster auto` or `--cluster ray://host:port` on a folder that all
of them share (docs/cluster.md).

python examples/cluster_sweep.py      writes cluster_sweep/: results.csv, figures, a report
"""

import ray.cluster_utils

from fedmf.cli import main

if __name__ == "__main__":
    cluster = ray.cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    ray.init(address=cluster.address, log_to_driver=False)
    main(
        """sweep --cluster auto --jobs 2 --out cluster_sweep --task regression -o clients=600
        --vary family=banded,identity --vary server-learning-rate=0.1,0.3
        --rounds 40 --cohort-size 30 --min-sep 16 --epsilon 4 --client-learning-rate 0.1
        --server-momentum 0.9 --warmup 0 --evaluate-every 10 --noise-seed os --quiet""".split()
    )
    ray.shutdown()
    cluster.shutdown()
