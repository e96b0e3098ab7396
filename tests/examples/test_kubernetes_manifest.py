"""The manifest of workers in Kubernetes is one that its API takes, and the commands of its page name what it has."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.docs.markdown import ROOT, blocks

MANIFEST = ROOT / "examples" / "kubernetes" / "workers.yaml"
PAGE = ROOT / "docs" / "how-to" / "workers.md"
API = "1.37"
"""Version of Kubernetes."""


def objects() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text("utf-8"))}


def commands() -> list[list[str]]:
    """Each line of the page that begins with kubectl, without that word."""
    lines = [line for block in blocks(PAGE) for line in block.text.splitlines()]
    lines += re.findall(r"`(kubectl [^`]+)`", PAGE.read_text("utf-8"))
    return [shlex.split(line)[1:] for line in lines if line.startswith("kubectl ")]


def command(*first: str) -> list[str]:
    """What follows these words in the one command that begins so."""
    (found,) = (each[len(first) :] for each in commands() if each[: len(first)] == [*first])
    return found


@pytest.mark.parametrize("kind", ["ConfigMap", "Service", "StatefulSet"])
def test_each_object_is_of_the_schema_of_the_api(kind: str) -> None:
    kubernetes_validate.validate(objects()[kind], API, strict=True)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("ConfigMap", lambda each: each["data"].update(topology=1)),
        ("Service", lambda each: each["spec"].update(publishNotReady=True)),
        ("StatefulSet", lambda each: each["spec"].update(replicas="three")),
        ("StatefulSet", lambda each: each["spec"].pop("selector")),
        (
            "StatefulSet",
            lambda each: each["spec"]["template"]["spec"]["containers"][0].update(environment=[]),
        ),
    ],
)
def test_a_wrong_object_is_not(kind: str, spoil: Callable[[Any], object]) -> None:
    wrong = copy.deepcopy(objects()[kind])
    spoil(wrong)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, API, strict=True)


def test_the_objects_refer_to_each_other() -> None:
    """No schema has this: a claim, a label or a name that is not there is found by a cluster only."""
    found = objects()
    spec = found["StatefulSet"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    assert spec["serviceName"] == found["Service"]["metadata"]["name"]
    pod = spec["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    claims = [each["metadata"]["name"] for each in spec["volumeClaimTemplates"]]
    (container,) = pod["containers"]
    mounted = [each["name"] for each in container["volumeMounts"]]
    assert sorted(mounted) == sorted([volume["name"], *claims])
    assert f"--grpc=0.0.0.0:{container['readinessProbe']['tcpSocket']['port']}" in container["args"]


def test_the_commands_of_the_page_name_what_the_manifest_has() -> None:
    found = objects()
    stateful_set = found["StatefulSet"]
    name, spec = stateful_set["metadata"]["name"], stateful_set["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    pods = [f"{name}-{ordinal}" for ordinal in range(spec["replicas"])]
    secret, literal, *_ = command("create", "secret", "generic")
    (reference,) = (
        each["valueFrom"]["secretKeyRef"] for each in container["env"] if "secretKeyRef" in each["valueFrom"]
    )
    assert {"name": secret, "key": literal.removeprefix("--from-literal=").partition("=")[0]} == reference
    assert command("apply", "-f") == [MANIFEST.name]
    copied, target = command("cp")
    pod, _, at = target.partition(":")
    executed, dashes, *run, topology, query = command("exec")
    assert (pod, executed, dashes) == (pods[0], pods[0], "--")
    assert run == ["nebuli", "start", "--stepped"]
    assert copied == at == query  # both relative to the container's working directory
    (mount,) = (each["mountPath"] for each in container["volumeMounts"] if each["name"] == "topology")
    assert PurePosixPath(topology) in [PurePosixPath(mount) / each for each in found["ConfigMap"]["data"]]
    assert f"--topology={topology}" in container["args"]
    assert command("rollout", "restart") == ["statefulset", name]
    assert {each[0] for each in commands()} == {"create", "apply", "cp", "exec", "rollout"}
