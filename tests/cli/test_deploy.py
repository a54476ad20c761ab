"""The files in deploy/: commands that exist, and a federation of three by the script that containers start."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import typer
from silo_sites import free_ports

from decibel.cli._app import app
from decibel.engines.silo._federation import Federation

ROOT = Path(__file__).parents[2]
DEPLOY, PAGE = ROOT / "deploy", ROOT / "docs" / "silo-operations.md"
SITES = ("amsterdam", "berlin", "copenhagen")
SILO = typer.main.get_command(app).commands["silo"].commands
COMMAND = re.compile(r"(?:\bdecibel|\$DECIBEL) silo ([a-z]+)([^`\n]*)")


def named_commands(text):
    return [(name, re.findall(r"(?<!\S)--[a-z-]+", rest)) for name, rest in COMMAND.findall(text)]


@pytest.mark.parametrize(
    "path", [PAGE, ROOT / "docs" / "silo.md", DEPLOY / "entrypoint.sh", DEPLOY / "decibel-site@.service"],
    ids=lambda path: path.name,
)  # fmt: skip
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
    names = set(re.findall(r"`(deploy/[^`]+)`", PAGE.read_text())) | {"deploy/federation.toml", "deploy/wards.py"}
    assert len(names) >= 6 and all((ROOT / name).is_file() for name in names)


def test_compose():
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = found["services"]
    assert services["organiser"]["command"] == ["organiser", *SITES]
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
    parts = {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    assert set(parts) == {"ConfigMap", "Service", "NetworkPolicy", "StatefulSet"}
    site = parts["StatefulSet"]["spec"]
    (container,) = site["template"]["spec"]["containers"]
    ((name, options),) = named_commands(" ".join(container["command"]))
    assert set(options) <= {one for parameter in SILO[name].params for one in parameter.opts}
    labels = site["template"]["metadata"]["labels"]
    assert site["replicas"] == 1 and parts["Service"]["spec"]["selector"] == labels
    assert parts["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    mounted = {volume["name"] for volume in container["volumeMounts"]}
    made = {volume["name"] for volume in site["template"]["spec"]["volumes"]}
    assert mounted == made | {claim["metadata"]["name"] for claim in site["volumeClaimTemplates"]}


def test_systemd_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "decibel-site@.service").read_text().replace("/opt/decibel/bin/decibel", sys.executable)
    unit = tmp_path / "decibel-site@amsterdam.service"
    unit.write_text(text)
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in found.stderr.splitlines() if "decibel-site@" in line and "Unknown" in line]
    assert not complaints and ("bad" not in found.stderr.lower() or "decibel-site" not in found.stderr)


class Rehearsal:
    """What compose.yaml starts, as plain processes on loopback: the same script, with folders in place of volumes."""

    def __init__(self, folder):
        self.folder, self.metrics = folder, dict(zip(SITES, free_ports(3), strict=True))
        text, ports = (DEPLOY / "federation.toml").read_text(), free_ports(2)
        for name, port in zip(SITES[:2], ports, strict=True):
            text = text.replace(f'"{name}:7401"\nlisten = "0.0.0.0:7401"', str(port))
        (folder / "federation.toml").write_text(text)
        self.processes = {}

    def start(self, *arguments):
        name = arguments[1] if arguments[0] == "site" else "organiser"
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        environment = {
            **os.environ, "PYTHONPATH": path, "DECIBEL": f"{sys.executable} -m decibel.cli", "JAX_PLATFORMS": "cpu",
            "SHARED": str(self.folder / "shared"), "AUTHORITY_HOME": str(self.folder / "authority"),
            "SITE_HOME": str(self.folder / name), "FEDERATION": str(self.folder / "federation.toml"),
            "METRICS_PORT": str(self.metrics.get(name, "")), "LOG_FORMAT": "json",
        }  # fmt: skip
        (self.folder / "shared").mkdir(exist_ok=True)
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                ["/bin/sh", str(DEPLOY / "entrypoint.sh"), *arguments],
                cwd=DEPLOY,
                env=environment,
                stdout=log,
                stderr=log,
            )

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def lines(self, name):
        return [json.loads(line) for line in self.log(name).splitlines() if line.startswith("{")]

    def health(self, name):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.metrics[name]}/healthz", timeout=5) as found:
                return json.loads(found.read())
        except (OSError, urllib.error.HTTPError):
            return {"state": "", "step": -1}

    def wait_until(self, condition, seconds=240):
        end = time.monotonic() + seconds
        while not condition():
            failed = [name for name, process in self.processes.items() if process.poll() not in (None, 0)]
            assert not failed and time.monotonic() < end, {name: self.log(name)[-2000:] for name in self.processes}
            time.sleep(0.1)

    def end(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.mark.slow
def test_three_sites_by_the_script_of_the_containers(tmp_path):
    """One is told to stop on the way, and started again."""
    run = Rehearsal(tmp_path)
    try:
        run.start("organiser", *SITES)
        run.start("site", "amsterdam")
        run.start("site", "berlin")
        run.wait_until(lambda: run.health("amsterdam")["state"] == "waiting")
        assert "copenhagen" in run.health("amsterdam")["detail"]
        run.start("site", "copenhagen")
        run.wait_until(lambda: run.health("copenhagen")["step"] >= 20)
        stopped = run.processes.pop("copenhagen")
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(30) == 0
        assert any("told to stop" in line["message"] for line in run.lines("copenhagen"))
        run.start("site", "copenhagen")
        run.wait_until(lambda: all(process.poll() == 0 for process in run.processes.values()))
    finally:
        run.end()
    for name in SITES:
        assert set(np.load(tmp_path / name / "solution.npz")) == {"['x']", "['y']"}
        lines = run.lines(name)
        assert all({"time", "level", "site", "message"} == set(line) for line in lines)
        assert any(line["message"].startswith("finished 300 steps; ") for line in lines)
        assert "was missing" in lines[-1]["message"]
    assert not list((tmp_path / "shared").rglob("key.pem"))


@pytest.mark.slow
def test_containers():
    """Builds the image and runs compose.yaml to its end, where somebody says by which runtime."""
    runtime = os.environ.get("DECIBEL_CONTAINERS")
    if not runtime:
        pytest.skip("DECIBEL_CONTAINERS names no container runtime, such as docker or podman")
    compose = [runtime, "compose", "-f", str(DEPLOY / "compose.yaml")]
    try:
        subprocess.run([*compose, "up", "--build"], check=True, timeout=1800)
        logs = subprocess.run([*compose, "logs"], check=True, capture_output=True, text=True).stdout
        assert len(re.findall(r"finished 300 steps", logs)) == 3
    finally:
        subprocess.run([*compose, "down", "--volumes"], check=False)
