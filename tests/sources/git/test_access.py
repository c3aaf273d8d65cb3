"""Git authentication by password, certificate and ssh key, and commit signatures."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.source import UnacceptableError, UnreachableError
from ports import free_port
from sources.fetching import fetch_to_cache, open_follower
from sources.git.remotes import SKILL_PATHS, GitServer, Upstream, served_paths, skill
from sources.oci.registries import self_signed
from wire import DEADLINE

pytestmark = pytest.mark.needs_program("git")


def run(*words: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=DEADLINE, env=environment).stdout


def test_credential_helper_supplies_password(upstream: Upstream, tmp_path: Path, git_config: Path) -> None:
    with GitServer(upstream.directory.parent, password="s3cret") as server:
        given = f"{server.url}/acme.git"
        with pytest.raises(UnreachableError, match="access is refused; have a credential helper"):
            fetch_to_cache(given, tmp_path)
        url = server.url.removeprefix("git+")
        helper = f'[credential "{url}"]\n\thelper = "!f() {{ echo username=reader; echo password=%s; }}; f"\n'
        git_config.write_text(helper % "wrong")
        with pytest.raises(UnreachableError, match="access is refused"):
            fetch_to_cache(given, tmp_path)
        git_config.write_text(helper % "s3cret")
        follower = fetch_to_cache(given, tmp_path)
        assert served_paths(follower) == SKILL_PATHS
        git_config.write_text("")
        with pytest.raises(UnreachableError, match="access is refused"):
            anyio.run(follower.refresh)
        assert served_paths(follower) == SKILL_PATHS
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes()


@pytest.mark.needs_program("openssl")
def test_failed_tls_handshake_is_no_untrusted_certificate(server: GitServer, tmp_path: Path) -> None:
    plain = f"{server.url}/acme.git".replace("http://", "https://")
    with pytest.raises(UnreachableError, match=r"no answer \(unable to access"):
        fetch_to_cache(plain, tmp_path)


def test_untrusted_certificate_is_refused(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with GitServer(upstream.directory.parent, tls=tls) as server:
        with pytest.raises(UnreachableError, match="its certificate is not trusted"):
            fetch_to_cache(f"{server.url}/acme.git", tmp_path)
        monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
        assert served_paths(fetch_to_cache(f"{server.url}/acme.git", tmp_path)) == SKILL_PATHS


@contextmanager
def ssh_server(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Run sshd with one authorized key; yield its port, and the folder of the ssh configuration."""
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin yes\nAcceptEnv GIT_PROTOCOL\n"
    )
    (folder / "known_hosts").write_text("")
    (folder / "config").write_text(
        f"Host *\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known_hosts\n"
    )
    sshd = shutil.which("sshd") or "sshd"
    process = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"Server listening" in line:
                break
        yield port, folder
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE)


def has_shell() -> bool:
    """Tell whether this user has a login shell, which sshd requires."""
    try:
        return not pwd.getpwuid(os.getuid()).pw_shell.endswith(("nologin", "false"))
    except KeyError:
        return False


@pytest.mark.needs_program("sshd", "ssh", "ssh-keygen")
@pytest.mark.skipif(not has_shell(), reason="sshd requires a login shell")
def test_ssh_uses_configuration_and_keys_of_user(upstream: Upstream, tmp_path: Path, git_config: Path) -> None:
    with ssh_server(tmp_path) as (port, folder):
        given = f"git+ssh://{getpass.getuser()}@127.0.0.1:{port}{upstream.directory}"
        git_config.write_text(f"[core]\n\tsshCommand = ssh -F {folder}/config -o BatchMode=yes\n")
        with pytest.raises(UnreachableError, match="ssh does not know the host's key"):
            fetch_to_cache(given, tmp_path)
        host_key = (folder / "host.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
        keys = (folder / "authorized_keys").read_text()
        (folder / "authorized_keys").write_text("")
        with pytest.raises(UnreachableError, match="access is refused"):
            fetch_to_cache(given, tmp_path)
        (folder / "authorized_keys").write_text(keys)
        follower = fetch_to_cache(given, tmp_path)
        assert served_paths(follower) == SKILL_PATHS
        with pytest.raises(UnreachableError, match="there is no repository there"):
            fetch_to_cache(f"{given}x", tmp_path)


class Signers:
    """The ssh keys of alice and mallory, which sign commits, and a file of allowed signers."""

    def __init__(self, upstream: Upstream, tmp_path: Path) -> None:
        self._upstream = upstream
        self._folder = tmp_path / "keys"
        self._folder.mkdir()
        self.allowed = tmp_path / "allowed_signers"
        for name in ("alice", "mallory"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name))
        self.allow()

    def allow(self, name: str = "alice", options: str = 'namespaces="git"') -> None:
        """Allow only this signer."""
        key = " ".join((self._folder / f"{name}.pub").read_text().split()[:2])
        self.allowed.write_text(f"{name}@example.com {options} {key}\n")

    def commit(self, name: str | None, *, tampered: bool = False) -> str:
        """Commit to main, unsigned if `name` is None, and return the id."""
        commit = self._upstream.commit(skill("alpha", f"By {name}."))
        if name is None:
            return commit
        raw = self._upstream.git("cat-file", "commit", commit).encode() + b"\n"
        payload = self._folder / "payload"
        payload.write_bytes(raw)
        (self._folder / "payload.sig").unlink(missing_ok=True)
        run("ssh-keygen", "-Y", "sign", "-n", "git", "-f", str(self._folder / name), str(payload))
        signature = (self._folder / "payload.sig").read_text().strip().replace("\n", "\n ")
        head, _, message = raw.partition(b"\n\n")
        if tampered:
            message = message.replace(b"change", b"evil")
        signed = head + f"\ngpgsig {signature}\n\n".encode() + message
        commit = self._upstream.git("hash-object", "-t", "commit", "-w", "--stdin", given=signed)
        self._upstream.git("update-ref", "refs/heads/main", commit)
        return commit


@pytest.mark.needs_program("ssh-keygen")
def test_commit_without_allowed_signature_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    signers = Signers(upstream, tmp_path)
    fetch_to_cache(upstream.url, tmp_path)
    follower = open_follower(upstream.url, tmp_path, signers=signers.allowed)
    assert not follower.has_copy  # the copy that was fetched without this option is not served
    with pytest.raises(UnacceptableError, match="is not signed by anybody"):
        anyio.run(follower.refresh)
    good = signers.commit("alice")
    anyio.run(follower.refresh)
    for name, tampered in (("mallory", False), (None, False), ("alice", True)):
        commit = signers.commit(name, tampered=tampered)
        with pytest.raises(UnacceptableError, match=f"commit {commit[:12]} is not signed by anybody") as refused:
            anyio.run(follower.refresh)
        assert "\n" not in str(refused.value)
        assert b"By alice." in (follower.path / "skills/alpha/SKILL.md").read_bytes()
        upstream.git("update-ref", "refs/heads/main", good)
    signers.allow("mallory")
    assert not open_follower(upstream.url, tmp_path, signers=signers.allowed).has_copy


@pytest.mark.needs_program("ssh-keygen")
def test_commit_by_temporary_signer_is_not_served_without_that_signer(upstream: Upstream, tmp_path: Path) -> None:
    signers = Signers(upstream, tmp_path)
    signers.commit("alice")
    follower = fetch_to_cache(upstream.url, tmp_path, signers=signers.allowed)
    signers.allow("mallory")
    signers.commit("mallory")
    with pytest.raises(UsageError, match="restart the server"):
        anyio.run(follower.refresh)
    signers.allow()
    for each in (follower, open_follower(upstream.url, tmp_path, signers=signers.allowed)):
        with pytest.raises(UnacceptableError, match="is not signed by anybody"):
            anyio.run(each.refresh)
        assert b"By alice." in (each.path / "skills/alpha/SKILL.md").read_bytes()


@pytest.mark.needs_program("ssh-keygen")
def test_signature_by_expired_or_wrong_purpose_key_is_refused(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signers = Signers(upstream, tmp_path)
    signers.commit("alice")
    for options in ('valid-before="20200101"', 'namespaces="file"', 'valid-after="20400101"'):
        signers.allow(options=options)
        with pytest.raises(UnacceptableError, match="is not signed by anybody"):
            fetch_to_cache(upstream.url, tmp_path, signers=signers.allowed)
    signers.allow()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git") or "")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "bin"))
        with pytest.raises(UnreachableError, match="ssh-keygen is not installed"):
            fetch_to_cache(upstream.url, tmp_path, signers=signers.allowed)
    fetch_to_cache(upstream.url, tmp_path, signers=signers.allowed)


def test_missing_file_of_signers_is_reported(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--require-signed-commits .*cannot be read"):
        open_follower(upstream.url, tmp_path, signers=tmp_path / "none")
