"""Who may read: passwords from the user's credential helper, certificates, keys of ssh, and whose commits are taken."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.source import UnacceptableError, UnreachableError
from sources.fetching import fetch_to_cache, open_follower
from sources.git.remotes import SKILL_PATHS, GitServer, Upstream, served_paths, skill
from sources.oci.registries import self_signed
from wire import DEADLINE

pytestmark = pytest.mark.needs_program("git")


def run(*words: str, **more: str) -> str:
    environment = {**os.environ, **more}
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=DEADLINE, env=environment).stdout


def test_the_credential_helper_of_the_user_has_the_password(
    upstream: Upstream, tmp_path: Path, git_config: Path
) -> None:
    with GitServer(upstream.directory.parent, password="s3cret") as server:
        given = f"{server.url}/acme.git"
        with pytest.raises(UnreachableError, match="access is refused; have a credential helper"):
            fetch_to_cache(given, tmp_path)
        where = server.url.removeprefix("git+")
        helper = f'[credential "{where}"]\n\thelper = "!f() {{ echo username=reader; echo password=%s; }}; f"\n'
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
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]


@pytest.mark.needs_program("openssl")
def test_https_wants_a_trusted_certificate(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """The port of a real sshd that knows one key, and the folder with a configuration of ssh that has it."""
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
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
    """Whether sshd lets this user in: an account of a service has no shell to log in to."""
    try:
        return not pwd.getpwuid(os.getuid()).pw_shell.endswith(("nologin", "false"))
    except KeyError:
        return False


@pytest.mark.needs_program("sshd", "ssh", "ssh-keygen")
@pytest.mark.skipif(not has_shell(), reason="sshd lets nobody in whose account has no shell")
def test_ssh_uses_configuration_and_keys_of_the_user(upstream: Upstream, tmp_path: Path, git_config: Path) -> None:
    with ssh_server(tmp_path) as (port, folder):
        given = f"git+ssh://{getpass.getuser()}@127.0.0.1:{port}{upstream.directory}"
        git_config.write_text(f"[core]\n\tsshCommand = ssh -F {folder}/config -o BatchMode=yes\n")
        with pytest.raises(UnreachableError, match="ssh does not know the host's key"):
            fetch_to_cache(given, tmp_path)
        host = (folder / "host.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host}")
        keys = (folder / "authorized_keys").read_text()
        (folder / "authorized_keys").write_text("")
        with pytest.raises(UnreachableError, match="access is refused"):
            fetch_to_cache(given, tmp_path)
        (folder / "authorized_keys").write_text(keys)
        follower = fetch_to_cache(given, tmp_path)
        assert served_paths(follower) == SKILL_PATHS
        with pytest.raises(UnreachableError, match="there is no repository there"):
            fetch_to_cache(f"{given}x", tmp_path)


class Signing:
    """Keys, and commits that are signed with them."""

    def __init__(self, upstream: Upstream, tmp_path: Path) -> None:
        self._upstream = upstream
        self._folder = tmp_path / "keys"
        self._folder.mkdir()
        self.signers = tmp_path / "allowed_signers"
        for name in ("alice", "mallory"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name))
        self.allow()

    def allow(self, name: str = "alice", options: str = 'namespaces="git"') -> None:
        """Have the file name this signer alone."""
        key = " ".join((self._folder / f"{name}.pub").read_text().split()[:2])
        self.signers.write_text(f"{name}@example.com {options} {key}\n")

    def commit(self, name: str | None, *, tampered: bool = False) -> str:
        """A commit on main, signed by nobody if None; its id."""
        up = self._upstream
        commit = up.commit(skill("alpha", f"By {name}."))
        if name is None:
            return commit
        raw = up.git("cat-file", "commit", commit).encode() + b"\n"
        payload = self._folder / "payload"
        payload.write_bytes(raw)
        (self._folder / "payload.sig").unlink(missing_ok=True)
        run("ssh-keygen", "-Y", "sign", "-n", "git", "-f", str(self._folder / name), str(payload))
        signature = (self._folder / "payload.sig").read_text().strip().replace("\n", "\n ")
        head, _, message = raw.partition(b"\n\n")
        body = message.replace(b"made", b"evil") if tampered else message
        signed = head + f"\ngpgsig {signature}\n".encode() + b"\n" + body
        made = up.git("hash-object", "-t", "commit", "-w", "--stdin", given=signed)
        up.git("update-ref", "refs/heads/main", made)
        return made


@pytest.mark.needs_program("ssh-keygen")
def test_only_commits_of_allowed_signers_are_taken(upstream: Upstream, tmp_path: Path) -> None:
    signing = Signing(upstream, tmp_path)
    fetch_to_cache(upstream.url, tmp_path)
    follower = open_follower(upstream.url, tmp_path, signers=signing.signers)
    assert not follower.has_copy, "what was fetched without asking for signatures is not served with it"
    with pytest.raises(UnacceptableError, match="is not signed by anybody"):
        anyio.run(follower.refresh)
    good = signing.commit("alice")
    anyio.run(follower.refresh)
    for name, tampered in (("mallory", False), (None, False), ("alice", True)):
        made = signing.commit(name, tampered=tampered)
        with pytest.raises(UnacceptableError, match=f"commit {made[:12]} is not signed by anybody") as refused:
            anyio.run(follower.refresh)
        assert "\n" not in str(refused.value)
        assert b"By alice." in (follower.path / "skills/alpha/SKILL.md").read_bytes()
        upstream.git("update-ref", "refs/heads/main", good)
    signing.allow("mallory")
    assert not open_follower(upstream.url, tmp_path, signers=signing.signers).has_copy


@pytest.mark.needs_program("ssh-keygen")
def test_a_key_that_was_not_valid_or_is_for_something_else_is_refused(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing = Signing(upstream, tmp_path)
    signing.commit("alice")
    for options in ('valid-before="20200101"', 'namespaces="file"', 'valid-after="20400101"'):
        signing.allow(options=options)
        with pytest.raises(UnacceptableError, match="is not signed by anybody"):
            fetch_to_cache(upstream.url, tmp_path, signers=signing.signers)
    signing.allow()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git") or "")
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path / "bin"))
        with pytest.raises(UnreachableError, match="ssh-keygen is not installed"):
            fetch_to_cache(upstream.url, tmp_path, signers=signing.signers)
    fetch_to_cache(upstream.url, tmp_path, signers=signing.signers)


def test_a_file_of_signers_must_be_there(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--require-signed-commits .*cannot be read"):
        open_follower(upstream.url, tmp_path, signers=tmp_path / "none")
