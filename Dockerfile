# nebuli with all that a worker needs. docs/install.md shows how to build and run it.

FROM python:3.13-slim-trixie AS build
WORKDIR /source
COPY pyproject.toml requirements.lock README.md CHANGELOG.md LICENSE ./
COPY distributions distributions
COPY netchannel netchannel
COPY pyspark_netchannel pyspark_netchannel
COPY spark_bridge spark_bridge
COPY nebuli nebuli
COPY placement placement
COPY topology topology
RUN python -m venv /opt/nebuli \
    && /opt/nebuli/bin/pip install --no-cache-dir --constraint requirements.lock \
        . './distributions/nebuli[http,metrics,objects,postgres]'

FROM python:3.13-slim-trixie
COPY --from=build /opt/nebuli /opt/nebuli
ENV PATH=/opt/nebuli/bin:$PATH
# Relative paths of sources and sinks begin here, and fragments are remembered below it.
RUN useradd --uid 10001 --create-home --home-dir /var/lib/nebuli nebuli
USER 10001
WORKDIR /var/lib/nebuli
STOPSIGNAL SIGTERM
ENTRYPOINT ["nebuli"]
CMD ["--help"]
