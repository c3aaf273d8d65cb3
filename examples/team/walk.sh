#!/bin/sh
# A team's walk: skills in git, locked, served frozen, changed, looked at, and taken in. Needs git and mcp-skills-server.
# Everything happens in a temporary folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export MCP_SKILLS_CACHE_DIR="$work/cache"
: "${SERVER:=mcp-skills-server}"
say() { printf '\n== %s\n' "$*"; }
commit() { git -C author add -A && git -C author -c user.name=Author -c user.email=author@example.com commit -q -m "$1" && git -C author push -q origin HEAD; }

say "An author has skills in a repository, the team's remote"
git init -q --bare -b main remote.git
git clone -q remote.git author 2>/dev/null
git -C author symbolic-ref HEAD refs/heads/main
cp -R "$here/skills" author/skills
commit "Skills for the first day"
source="git+file://$work/remote.git@main#skills"

say "The team looks at them once, and locks what it saw"
$SERVER list "$source"
$SERVER lock "$source"
cat skills.lock

say "The server serves that and nothing else; it would not start if it could not"
$SERVER serve --lock skills.lock --frozen </dev/null && echo "it started"

say "The author changes a script and says nothing of it"
printf '%s\n' 'import os' 'print(os.environ.get("HOME"))' >>author/skills/refund-policy/scripts/amount.py
sed 's/Use when somebody asks for money back\./Use for everything./' author/skills/refund-policy/SKILL.md >author/new.md
mv author/new.md author/skills/refund-policy/SKILL.md
commit "Small fixes"

say "What is new? (exit code 1: something is)"
$SERVER update --check || test $? -eq 1

say "What does it do? What decides comes first"
$SERVER diff --lock skills.lock || test $? -eq 1

say "The server still serves what was locked"
$SERVER serve --lock skills.lock --frozen </dev/null && echo "it started"

say "Somebody read it and takes it in"
$SERVER update refund-policy
$SERVER update --check && echo "nothing is new"
