# The image of mcp-skills-server. How to use it: docs/container.md. `make image` builds it and tries it out.
#
# Both stages stand on the same base, because a virtual environment points at the interpreter it was made with: the newest
# Python that the suite was run on, for which each version in constraints.txt has a wheel.
ARG BASE=python:3.13-slim-trixie

FROM ${BASE} AS build
WORKDIR /build
# Where pip looks for packages, for a build that cannot or may not use the public index.
ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
# pip stays here; the environment that is copied has none.
RUN python3 -m venv pip && python3 -m venv --without-pip /app
# Extras of the package, such as [redis,ui].
ARG EXTRAS=
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN PIP_CONSTRAINT=/build/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    pip/bin/pip --python /app/bin/python3 install --quiet --no-cache-dir --no-compile ".${EXTRAS}"
COPY deploy/healthcheck.py /app/
# Bytecode that is never checked against its source: nobody may write here, and copying may change time stamps.
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /app/lib

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=unknown
LABEL io.modelcontextprotocol.server.name="io.github.mcp-skills-server/mcp-skills-server" \
      org.opencontainers.image.title="mcp-skills-server" \
      org.opencontainers.image.description="Serves any folder of Agent Skills to every MCP host." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# What sources in git are fetched with. A base that has both is left as it is, and needs no network here.
RUN { command -v git && command -v ssh; } > /dev/null \
    || { apt-get update && apt-get install --yes --no-install-recommends git openssh-client \
         && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*; }
# ssh refuses a user without a name. Keys and known_hosts are mounted at /home/skills/.ssh.
RUN echo 'skills:x:10001:10001::/home/skills:/usr/sbin/nologin' >> /etc/passwd \
    && mkdir /home/skills
# Slim images come without the bytecode of the standard library, and this one can write none later.
RUN python3 -m compileall -q -x '/(site-packages|dist-packages|test|tests|idlelib|lib2to3|tkinter|turtledemo)/' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && mkdir /skills
COPY --from=build /app /app
# With a threshold of its own glibc gives the memory of large answers back, instead of 1 GB or more that it keeps.
ENV PATH=/app/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/home/skills \
    MALLOC_TRIM_THRESHOLD_=131072 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MCP_SKILLS_ROOTS=/skills \
    MCP_SKILLS_TRANSPORT=http \
    MCP_SKILLS_HOST=0.0.0.0 \
    MCP_SKILLS_PORT=8000 \
    MCP_SKILLS_USAGE=off
USER 10001:10001
WORKDIR /
VOLUME ["/skills"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 \
    CMD ["/app/bin/python3", "-I", "-S", "/app/healthcheck.py"]
# The server refuses to start until MCP_SKILLS_ALLOWED_HOST, MCP_SKILLS_TOKEN_FILE or MCP_SKILLS_TOKENS is set.
ENTRYPOINT ["/app/bin/mcp-skills-server"]
CMD ["serve"]
