"""The files in deploy/: commands that exist, and a federation of three by the script that containers start."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from silo_commands import silo_command
from silo_fleet import Processes
from silo_sites import free_ports

import decibel as db
from decibel.cli._app import app
from decibel.results._status import Status
from decibel.silo._federation import Federation
from decibel.silo.commands import _run_site
from decibel.silo.trust._certificates import make_request, pem
from decibel.silo.trust._signing import new_key

ROOT = Path(__file__).parents[2]
DEPLOY, PAGE = ROOT / "deploy", ROOT / "docs" / "silo-operations.md"
SITES = ("amsterdam", "berlin", "copenhagen")
SILO = typer.main.get_command(app).commands["silo"].commands
COMMAND = re.compile(r"(?:\bdecibel|\$DECIBEL) silo ([a-z]+)([^`\n]*)")


def named_commands(text):
    return [(name, re.findall(r"(?<!\S)--[a-z-]+", rest)) for name, rest in COMMAND.findall(text)]


@pytest.mark.parametrize(
    "path",
    [
        PAGE,
        ROOT / "docs" / "silo.md",
        ROOT / "docs" / "silo-amend.md",
        DEPLOY / "entrypoint.sh",
        DEPLOY / "decibel-site@.service",
    ],
    ids=lambda path: path.name,
)
def test_commands_and_options_exist(path):
    found = named_commands(path.read_text())
    assert len(found) >= 1
    for name, options in found:
        assert name in SILO, name
        known = {one for parameter in SILO[name].params for one in parameter.opts}
        assert set(options) <= known, (name, options)


def test_an_unknown_command_would_be_found():
    assert named_commands("`decibel silo start x --now` and decibel silo run a --problem m:f") == [
        ("start", ["--now"]), ("run", ["--problem"]),
    ]  # fmt: skip


def test_files_that_the_page_names_exist():
    names = set(re.findall(r"`(deploy/[^`]+)`", PAGE.read_text())) | {
        "deploy/federation.toml",
        "deploy/example_problem.py",
    }
    assert len(names) >= 6 and all((ROOT / name).is_file() for name in names)


def test_compose():
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = found["services"]
    assert services["organiser"]["command"] == ["organiser"]
    federation = Federation.from_toml(DEPLOY / "federation.toml")
    assert tuple(site.name for site in federation.sites) == SITES
    for site in federation.sites:
        assert services[site.name]["command"] == ["site", site.name]
        assert site.address in (None, f"{site.name}:7401")  # the service's name is its address
    used = {volume.split(":")[0] for one in services.values() for volume in one["volumes"]}
    assert used == set(found["volumes"])
    homes = [volume for name in SITES for volume in services[name]["volumes"] if volume.endswith(":/site")]
    assert len(set(homes)) == 3  # nobody sees another's key


def test_container_file_copies_what_there_is():
    text = (DEPLOY / "Containerfile").read_text()
    for line in re.findall(r"^COPY (.+) \S+$", text, re.M):
        assert all((ROOT / name).exists() for name in line.split()), line
    assert re.search(r"ENTRYPOINT .*entrypoint\.sh", text) and "USER decibel" in text


def test_kubernetes_manifests():
    yaml = pytest.importorskip("yaml")
    parts = {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    assert set(parts) == {"ConfigMap", "PersistentVolumeClaim", "Service", "NetworkPolicy", "Job"}
    job = parts["Job"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    ((name, options),) = named_commands(" ".join(container["command"]))
    assert set(options) <= {option for parameter in SILO[name].params for option in parameter.opts}
    labels = job["template"]["metadata"]["labels"]
    assert parts["Service"]["spec"]["selector"] == labels
    assert parts["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    mounted = {volume["name"] for volume in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    claims = [
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    ]
    assert claims == [parts["PersistentVolumeClaim"]["metadata"]["name"]]


def test_a_job_starts_one_pod_at_a_time_until_the_run_is_done():
    yaml = pytest.importorskip("yaml")
    parts = {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    job = parts["Job"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert job["completions"] == job["parallelism"] == 1 and job["podReplacementPolicy"] == "Failed"
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy needs it
    command = container["command"]
    assert int(command[command.index("--interrupted-status") + 1]) > 0  # or a drained pod would count as done
    probes = {
        kind: " ".join(container[f"{kind}Probe"]["exec"]["command"]) for kind in ("startup", "liveness", "readiness")
    }
    assert "/healthz" in probes["startup"] and "/healthz" in probes["liveness"] and "/readyz" in probes["readiness"]
    assert parts["Service"]["spec"]["publishNotReadyAddresses"]  # or no site would become ready


def test_the_image_has_the_versions_of_the_tests():
    text = (DEPLOY / "Containerfile").read_text()
    (install,) = re.findall(r"pip install .+", text)
    assert "-c /source/constraints.txt" in install and re.search(r"^COPY .*constraints\.txt", text, re.M)


def test_systemd_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "decibel-site@.service").read_text().replace("/opt/decibel/bin/decibel", sys.executable)
    unit = tmp_path / "decibel-site@amsterdam.service"
    unit.write_text(text)
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in found.stderr.splitlines() if "decibel-site@" in line and "Unknown" in line]
    assert not complaints and ("bad" not in found.stderr.lower() or "decibel-site" not in found.stderr)


@pytest.mark.parametrize(("status", "code"), [(Status.INTERRUPTED, 75), (Status.COMPLETED, 0), (Status.STOPPED, 0)])
def test_only_a_signal_before_the_last_step_has_the_status_of_interruptions(tmp_path, monkeypatch, status, code):
    trace = SimpleNamespace(save=lambda path: None, last={"step": 3, "loss": 0.5})
    ended = SimpleNamespace(
        trace=trace, save=lambda path, trace: None, step=3, steps_done=3, status=status, message="why"
    )
    monkeypatch.setattr(_run_site, "_solve", lambda engine, problem: ended)
    arguments = ["run", "amsterdam", "--problem", "example_problem:problem", "--home", str(tmp_path)]
    silo_command(*arguments, "--interrupted-status", "75", code=code)
    silo_command(*arguments)


class Rehearsal(Processes):
    """What compose.yaml starts, as plain processes on loopback: the same script, with folders in place of volumes."""

    def __init__(self, folder):
        super().__init__(folder)
        self.metrics = dict(zip(SITES, free_ports(3), strict=True))
        text, ports = (DEPLOY / "federation.toml").read_text(), free_ports(2)
        for name, port in zip(SITES[:2], ports, strict=True):
            text = text.replace(f'"{name}:7401"\nlisten = "0.0.0.0:7401"', str(port))
        (folder / "federation.toml").write_text(text)
        (folder / "shared").mkdir()

    def start(self, *arguments):
        name = arguments[1] if arguments[0] == "site" else arguments[0]
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        given = {
            "PYTHONPATH": path, "DECIBEL": f"{sys.executable} -m decibel.cli",
            "SHARED": str(self.folder / "shared"), "AUTHORITY_HOME": str(self.folder / "authority"),
            "SITE_HOME": str(self.folder / name), "FEDERATION": str(self.folder / "federation.toml"),
            "METRICS_PORT": str(self.metrics.get(name, "")), "LOG_FORMAT": "json",
        }  # fmt: skip
        self.launch(name, ["/bin/sh", str(DEPLOY / "entrypoint.sh"), *arguments], cwd=DEPLOY, env=given)

    def sign(self, name):
        """As a person would, who reads the fingerprint in the site's log."""
        told = re.compile(r"has the fingerprint\n +((?:\d{5} ?){12})")
        self.wait_until(lambda: told.search(self.log(name)))
        self.start("sign", name, told.search(self.log(name))[1])

    def lines(self, name):
        return [json.loads(line) for line in self.log(name).splitlines() if line.startswith("{")]

    def readiness(self, name):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.metrics[name]}/readyz", timeout=5) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as answer:
            return json.loads(answer.read())
        except OSError:
            return {"state": "", "step": -1}


@pytest.mark.slow
def test_three_sites_by_the_script_of_the_containers(tmp_path):
    """One is told to stop on the way, and started again."""
    run = Rehearsal(tmp_path)
    try:
        run.start("organiser")
        for name in SITES[:2]:
            run.start("site", name)
            run.sign(name)
            run.wait_until(lambda: run.processes["sign"].poll() == 0)
        run.wait_until(lambda: run.readiness("amsterdam")["state"] == "waiting")
        assert "copenhagen" in run.readiness("amsterdam")["detail"]
        run.start("site", "copenhagen")
        run.sign("copenhagen")
        run.wait_until(lambda: run.readiness("copenhagen")["step"] >= 20)
        stopped = run.processes.pop("copenhagen")
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(30) == 0
        assert any("told to stop" in line["message"] for line in run.lines("copenhagen"))
        run.start("site", "copenhagen")
        run.wait_until(lambda: all(process.poll() == 0 for process in run.processes.values()))
    finally:
        run.end()
    for name in SITES:
        model = db.Result.load(tmp_path / name / "solution.npz")
        assert model.step == 300 and model.x.shape == model.y.shape == (3,)
        lines = run.lines(name)
        assert all({"time", "level", "site", "message"} == set(line) for line in lines)
        assert any(line["message"].startswith("finished 300 steps; ") for line in lines)
        assert "was missing" in lines[-1]["message"]
    assert not list((tmp_path / "shared").rglob("key.pem"))


def test_the_script_signs_only_by_the_fingerprint_that_somebody_gives():
    text = (DEPLOY / "entrypoint.sh").read_text()
    signing = [line for line in text.splitlines() if " silo sign " in line]
    assert len(signing) == 1 and signing[0].endswith('--fingerprint "$2"')
    assert 'sign) sign_request "$2" "$3" ;;' in text and text.count("sign_request") == 2


@pytest.mark.slow
def test_the_script_signs_nothing_unattended(tmp_path):
    """A request that somebody puts into the shared folder is signed by nobody."""
    run = Rehearsal(tmp_path)
    try:
        run.start("organiser")
        (tmp_path / "shared" / "amsterdam.request.pem").write_bytes(pem(make_request(new_key(), "amsterdam", "wards")))
        run.wait_until(lambda: run.processes["organiser"].poll() == 0, 60)
        run.start("sign", "amsterdam", "12345 " * 12)
        assert run.processes["sign"].wait(60) == 1 and "another key than the fingerprint" in run.log("sign")
    finally:
        run.end()
    assert not list(tmp_path.rglob("*certificate.pem"))


def log_of(compose, name):
    return subprocess.run([*compose, "logs", name], capture_output=True, text=True, timeout=60).stdout


def wait_for_log(compose, name, pattern, seconds):
    """What a pattern finds in the log of a service, once it does."""
    end = time.monotonic() + seconds
    while (match := re.search(pattern, log_of(compose, name), re.DOTALL)) is None:
        assert time.monotonic() < end, log_of(compose, name)[-2000:]
        time.sleep(1)
    return match


@pytest.mark.slow
def test_containers():
    """Builds the image and runs compose.yaml to its end, by the command that somebody names."""
    command = os.environ.get("DECIBEL_COMPOSE")
    if not command:
        pytest.skip("DECIBEL_COMPOSE names no command, such as docker compose or podman-compose")
    compose = [*shlex.split(command), "-f", str(DEPLOY / "compose.yaml")]
    try:
        subprocess.run([*compose, "build", "organiser"], check=True, timeout=1800)  # the image of all
        subprocess.run([*compose, "up", "--detach"], check=True, timeout=300)
        for name in SITES:
            told = wait_for_log(compose, name, r"has the fingerprint.*?((?:\d{5} ){11}\d{5})", 600)
            subprocess.run([*compose, "run", "--rm", "organiser", "sign", name, told[1]], check=True)
        for name in SITES:
            wait_for_log(compose, name, "finished 300 steps", 600)
    finally:
        subprocess.run([*compose, "down", "--volumes"], check=False)
