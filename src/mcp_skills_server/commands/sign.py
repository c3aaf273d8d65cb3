"""`sign` and `verify`: detached signatures of skills."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.fields import many, option, takes, text
from mcp_skills_server.commands.opening import load_registry
from mcp_skills_server.commands.options import (
    RootOptions,
    ScanOptions,
    limits_of,
    path_or_none,
    roots_argument,
)
from mcp_skills_server.commands.printing import remark, say, writing
from mcp_skills_server.durable import replace_file
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SIGNATURE_FILE, Standing
from mcp_skills_server.provenance import signatures

_FILE = click.Path(dir_okay=False)


class SignOptions(ScanOptions):
    key: str = option("", "The private key, a PEM file.", required=True, type=_FILE, metavar="FILE")
    password_env: str | None = text("The variable with the password of the key.", "NAME")
    certificates: tuple[str, ...] = many(
        "The key's certificate, then the certificates of its issuers.", "FILE", "--certificate"
    )


class VerifyOptions(RootOptions):
    keys: tuple[str, ...] = many(
        "A public key or an authority's certificate, in PEM. One of several must have signed.",
        "FILE",
        "--key",
    )
    identity: str | None = text("The address of a signer without a key, by sigstore.", "NAME")
    issuer: str | None = text("With --identity: the OpenID Connect issuer of it.", "URL")
    trust_root: str | None = text(
        "With --identity: a file with the trust root; by default sigstore's own is fetched.", "FILE"
    )


@click.command()
@click.argument("directory", metavar="DIR")
@takes(SignOptions)
def sign(options: SignOptions, directory: str) -> int:
    """Sign each skill in DIR, a folder of skills or a skill, by a file skill.oms.sig in it.

    It is a signature of OpenSSF model signing, which other programs can verify, too. A change of
    any file makes it invalid, and so does a new one. Exit code 1 when a skill is not signed, since
    it cannot be served.

    \b
    Examples:
      openssl ecparam -name prime256v1 -genkey -noout -out team.key
      openssl ec -in team.key -pubout -out team.pub
      mcp-skills-server sign ~/skills --key team.key
    """
    password = None
    if options.password_env is not None:
        if options.password_env not in os.environ:
            raise UsageError(f"--password-env {options.password_env}: no such variable; set it")
        password = os.environ[options.password_env].encode()
    registry = Registry([directory], limits_of(options))
    registry.load()
    paths = registry.snapshot.paths(Standing.LENIENT)
    # Inner skills first: the signature of a skill covers the signatures of skills nested in it.
    for path in sorted(paths, key=lambda path: -path.count("/")):
        skill = registry.snapshot.skills[path]
        certificates = [*map(Path, options.certificates)]
        made = signatures.sign(registry.read_all(skill), Path(options.key), password, certificates)
        folder = registry.place(skill)
        file = Path(folder, SIGNATURE_FILE)
        with writing(str(file), "check the folder's permissions"):
            replace_file(file, made, 0o644)  # the usual mode of a skill's files
        registry.refresh([folder])
        say(f"signed {path}")
    left_out = registry.snapshot.skills.keys() - {*paths}
    for path in sorted(left_out):
        remark(f"{path}: not signed, since it cannot be served; see 'validate'")
    if not paths:
        remark(f"{directory}: there is no skill to sign")
    return int(bool(left_out) or not paths)


@click.command()
@roots_argument
@takes(VerifyOptions)
def verify(options: VerifyOptions, roots: tuple[str, ...]) -> int:
    """Check the signature of each skill below each ROOT against the keys.

    Exit code 1 if a skill has no valid signature by one of them.

    \b
    Examples:
      mcp-skills-server verify ~/skills --key team.pub
      mcp-skills-server verify ~/skills --identity me@example.com --issuer https://accounts.example
    """
    if (options.identity is None) != (options.issuer is None):
        raise UsageError("--identity and --issuer belong together; give both, or --key FILE")
    identity = None
    if options.identity is not None:
        root = path_or_none(options.trust_root)
        identity = signatures.Identity(options.identity, options.issuer or "", root)
    elif not options.keys:
        raise UsageError("verify needs --key FILE, a public key, or --identity and --issuer")
    verifier = signatures.Verifier([*map(Path, options.keys)], identity)
    registry = load_registry(roots, options)
    failed = 0
    usable = registry.snapshot.paths(Standing.LENIENT)
    for path in usable:
        try:
            verifier.check(registry.read_all(registry.snapshot.skills[path]))
            say(f"{path}: signed")
        except signatures.UnsignedError as error:
            failed += 1
            say(f"{path}: {error} [{error.code}]")
    unusable = registry.snapshot.skills.keys() - {*usable}
    for path in sorted(unusable):
        remark(f"{path}: not checked, since it cannot be served; see 'validate'")
    if not registry.snapshot.skills:
        remark("there is no skill to verify")
    return int(bool(failed or unusable) or not registry.snapshot.skills)
