"""What `deploy/` has for containers, Kubernetes and systemd means what it says, and is of today.

Goal: no flag, key or number in it that the code does not know. Method: the files are read as what
they are; the tools that render or judge them are asked where they are installed.
"""

import copy
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import yaml

from hightide_broker.config import check_listeners, check_open, environment_name, make_config
from hightide_broker.config_keys import KEYS
from hightide_cli.main import cli

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNIT = (DEPLOY / "hightide.service").read_text()
OVERLAYS = ["base", "overlays/dev", "overlays/tls", "overlays/racks"]
VARIABLES = {environment_name(key) for key in KEYS}
OF_START = {"CLUSTER_IS_NEW"}
"""What start.sh reads."""
TEXTS = [
    path
    for path in DEPLOY.rglob("*")
    if path.suffix in (".yaml", ".sh", ".service") or path.name == "Dockerfile"
]


@cache
def rendered(overlay):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl: what kustomize makes of it is not looked at")
    command = ["kubectl", "kustomize", str(KUBERNETES / overlay)]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        (each["kind"], re.sub(r"-[a-z0-9]{10}$", "", each["metadata"]["name"])): each
        for each in yaml.safe_load_all(made.stdout)
    }


def settings_of(objects):
    return objects["ConfigMap", "hightide"]["data"]


def node_of(objects):
    (container,) = objects["StatefulSet", "hightide"]["spec"]["template"]["spec"]["containers"]
    return container


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_variable_is_a_key(path):
    named = set(re.findall(r"\bHIGHTIDE_[A-Z_]+", path.read_text()))
    known = VARIABLES | {"HIGHTIDE_VENV", "HIGHTIDE_SECURE", "HIGHTIDE_KILLS", "HIGHTIDE_MUTANTS"}
    known |= {"HIGHTIDE_ROUNDS", "HIGHTIDE_SEED", "HIGHTIDE_BOOTSTRAP", "HIGHTIDE_SCALE"}
    others = {name for name in named - known if not name.startswith("HIGHTIDE_TEST")}
    if path.parent.name in ("container", "base", "dev", "tls", "racks") or path == DEPLOY / (
        "compose.yaml"
    ):
        assert others == set()


NOUNS = cli.list_commands(click.Context(cli))


def commands():
    """(file, words) of each `hightide …` in the files."""
    for path in TEXTS:
        for line in path.read_text().splitlines():
            for noun, rest in re.findall(r"hightide[, ]+([a-z]+)\b(.*)", line):
                words = re.sub(r"""[\[\],"']""", " ", re.split(r"[|&;`]| #", rest)[0]).split()
                if noun in NOUNS:
                    yield path, [noun, *words]


COMMANDS = [(path.name, words) for path, words in commands()]


def test_commands_are_found_in_the_files():
    nouns = {words[0] for _, words in COMMANDS}
    assert {"brokers", "certs", "console", "quorum", "server", "storage"} <= nouns


@pytest.mark.parametrize(
    "words",
    [words for _, words in COMMANDS],
    ids=[f"{name}-{words[:2]}" for name, words in COMMANDS],
)
def test_every_command_and_its_flags_exist(words):
    check(words)


def check(words):
    """Fails for what the command line does not know."""
    command, rest = cli, words
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), rest[0])
        assert command is not None, f"hightide has no {' '.join(words)}"
        rest = rest[1:]
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    assert {word for word in rest if re.fullmatch(r"-[a-z]|--[a-z-]+", word)} <= options


def test_the_flag_of_a_node_that_joins_exists():
    (flag,) = re.findall(
        r"^ +join=(--\S+)$", (DEPLOY / "container/start.sh").read_text(), re.MULTILINE
    )
    check(["storage", "format", flag])


# -- compose ---------------------------------------------------------------------------------------


def nodes():
    return {name: each for name, each in COMPOSE["services"].items() if name.startswith("broker-")}


def test_the_nodes_of_the_composition_are_configured_as_nodes_may_be():
    for name, service in nodes().items():
        said = {k: v for k, v in service["environment"].items() if k not in OF_START}
        said["HIGHTIDE_CLUSTER_ID"] = "compose"
        keys = {environment_name(key): key for key in KEYS}
        config = make_config({keys[variable]: value for variable, value in said.items()})
        assert config[KEYS["node.id"]] == int(name.removeprefix("broker-"))
        voters = config.voters
        assert voters[int(name[-1])] == (name, 19192)


def test_the_composition_is_one():
    if find_spec("check_jsonschema") is None:
        pytest.skip("no check-jsonschema: whether it is a composition is not looked at")
    asked = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    judged = subprocess.run(
        [*asked, str(DEPLOY / "compose.yaml")], capture_output=True, text=True, check=False
    )
    assert judged.returncode == 0, judged.stdout


def test_ports_of_the_composition_are_open_to_this_machine_alone():
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_no_node_waits_for_another_to_be_healthy():
    assert not any("depends_on" in service for service in nodes().values())


def test_what_the_composition_mounts_is_there():
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_file()


def test_the_image_copies_what_there_is():
    image = (DEPLOY / "container/Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", image, re.MULTILINE)
    for source in " ".join(copied).split():
        assert (DEPLOY.parent / source).exists(), source


# -- Kubernetes ------------------------------------------------------------------------------------


def exported(objects):
    """What the shell of the first pod sets."""
    (line,) = node_of(objects)["args"]
    values = {"$POD_NAMESPACE": "here", "$POD_NAME": "hightide-0", "$((${POD_NAME##*-} + 1))": "1"}
    for word, value in (*values.items(), ("$n", "1")):
        line = line.replace(word, value)
    return dict(re.findall(r"\b(HIGHTIDE_[A-Z_]+)=([^\s;]+)", line))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_rendered_is_what_kubernetes_takes(overlay):
    """Strictly: a field that there is not is a mistake."""
    judge = pytest.importorskip("kubernetes_validate")
    objects = rendered(overlay)
    for each in objects.values():
        judge.validate(each, judge.latest_version(), strict=True)
    spoilt = copy.deepcopy(objects["StatefulSet", "hightide"])
    spoilt["spec"]["replicsa"] = 3
    with pytest.raises(judge.ValidationError):
        judge.validate(spoilt, judge.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_node_of_the_overlay_is_configured_as_nodes_may_be(overlay):
    objects = rendered(overlay)
    said = {**settings_of(objects), **exported(objects)}
    keys = {environment_name(key): key for key in KEYS}
    config = make_config({keys[name]: said[name] for name in said.keys() - OF_START})
    check_listeners(config)
    check_open(config)
    assert len(config.voters) == objects["StatefulSet", "hightide"]["spec"]["replicas"]
    assert config.voters[1] == (said["HIGHTIDE_INTERNAL_ADVERTISED_HOST"], 19192)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nodes_find_each_other_before_they_are_ready(overlay):
    objects = rendered(overlay)
    nodes = objects["StatefulSet", "hightide"]["spec"]
    assert nodes["podManagementPolicy"] == "Parallel"
    assert objects["Service", nodes["serviceName"]]["spec"]["publishNotReadyAddresses"] is True
    assert objects["PodDisruptionBudget", "hightide"]["spec"]["maxUnavailable"] == 1
    assert nodes["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"


def test_alive_is_judged_by_the_node_alone_and_ready_decides_who_is_asked():
    node = node_of(rendered("base"))
    assert node["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert node["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert node["readinessProbe"]["httpGet"]["path"] == "/readyz"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_stop_has_the_time_that_it_takes(overlay):
    objects = rendered(overlay)
    patience_s = objects["StatefulSet", "hightide"]["spec"]["template"]["spec"][
        "terminationGracePeriodSeconds"
    ]
    stop_s = int(settings_of(objects)["HIGHTIDE_SHUTDOWN_TIMEOUT_MS"].removesuffix("s"))
    waits = node_of(objects)["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert patience_s > int(re.search(r"--wait (\d+)", waits)[1]) + 2 * stop_s


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_open_says_so(overlay):
    said = settings_of(rendered(overlay))
    proves = said.get("HIGHTIDE_SSL_CLIENT_AUTH") == "required"
    assert proves != (said["HIGHTIDE_ALLOW_INSECURE_LISTENER"] == "true")


def test_a_pod_may_do_nothing_but_its_work():
    objects = rendered("base")
    pod = objects["StatefulSet", "hightide"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert node_of(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


# -- systemd ---------------------------------------------------------------------------------------


def test_the_unit_exposes_little():
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: the unit is not judged")
    command = ["systemd-analyze", "security", "--offline=yes", str(DEPLOY / "hightide.service")]
    judged = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert float(re.search(r"exposure level for \S+: ([\d.]+)", judged)[1]) <= 2.0


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    """But that nothing is installed here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: the unit is not judged")
    unit = tmp_path / "hightide.service"
    unit.write_text(re.sub(r"(?<=^ExecStart=)\S+", "/bin/sh", UNIT, flags=re.MULTILINE))
    judged = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (judged.returncode, judged.stderr) == (0, "")


def test_the_unit_gives_a_stop_its_time_and_does_not_try_again_what_is_refused():
    facts = dict(re.findall(r"^([A-Za-z]+)=(.*)$", UNIT, re.MULTILINE))
    stop_ms = make_config({})[KEYS["shutdown.timeout.ms"]]
    assert int(facts["TimeoutStopSec"]) * 1000 > 2 * stop_ms
    assert facts["RestartPreventExitStatus"] == "2"
    assert facts["Type"] == "notify"
