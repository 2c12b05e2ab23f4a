"""The one way to install a pinned chart: from its repository, or from a chart directory of an air-gapped site."""

from pathlib import PurePosixPath

import pulumi
import pulumi_kubernetes as k8s

from infra.versions import Chart


def packed_at(directory: str, chart: Chart) -> str:
    """Path of a chart's file in a chart directory."""
    return str(PurePosixPath(directory) / f"{chart.name}-{chart.version}.tgz")


def install_chart(
    name: str,
    chart: Chart,
    values: dict[str, pulumi.Input[object]],
    namespace: str,
    directory: str | None,
    opts: pulumi.ResourceOptions,
) -> k8s.helm.v3.Release:
    """Declares the release, named like its chart; waits until its workloads are ready.

    `directory` is the value of `fleet:charts`: a folder with `<chart>-<version>.tgz` files on the machine that runs the
    update. None takes the chart from its repository.
    """
    packed = packed_at(directory, chart) if directory else None
    return k8s.helm.v3.Release(
        name,
        name=chart.name,  # charts build object names from it
        chart=packed or chart.name,
        repository_opts=None if packed else {"repo": chart.repository},
        version=chart.version,
        namespace=namespace,
        values=values,
        timeout=chart.timeout_s,
        skip_await=False,
        atomic=False,  # a failed release stays for the eye; the next update goes on with it
        opts=opts,
    )
