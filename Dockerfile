# syntax=docker/dockerfile:1
# The images of docker-compose.yaml and deploy/kubernetes, one target each: pump, airflow, spark, standin.
#
#   docker build --target pump --tag sluice-pump:0.1.0 .
#
# Packages are those of uv.lock. Python 3.12, because plyvel has no binary package for 3.13.
ARG PYTHON=python:3.12.13-slim-trixie

# ---- build: what is installed, made here and copied; compilers and caches stay behind ------------------------------------------------
FROM ${PYTHON} AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=/opt/venv
RUN python -m pip install --no-cache-dir --disable-pip-version-check uv==0.13.8
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE hatch_build.py airflow.cfg ./
# what the package needs changes seldom, so it has a layer of its own
RUN uv venv --python /usr/local/bin/python /opt/venv \
 && uv export --quiet --frozen --no-default-groups --no-emit-project --output-file /src/locked.txt

FROM build AS build-wheel
# for the compiled kernels
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
COPY bench ./bench
COPY cli ./cli
COPY dags ./dags
COPY devstack ./devstack
COPY etl ./etl
COPY expectations ./expectations
COPY pages ./pages
COPY plugins ./plugins
COPY pump_service ./pump_service
COPY relay ./relay
COPY sluice ./sluice
COPY spark ./spark
COPY tidb ./tidb
COPY errors.py ./
RUN SLUICE_COMPILED=1 uv build --quiet --wheel --out-dir /dist

FROM build AS build-pump
COPY deploy/pump-packages.txt ./
RUN uv pip install --quiet --python /opt/venv/bin/python --constraints locked.txt --requirements pump-packages.txt
COPY --from=build-wheel /dist /dist
RUN uv pip install --quiet --python /opt/venv/bin/python --no-deps /dist/*.whl

FROM build AS build-all
RUN uv sync --quiet --frozen --no-default-groups --extra aws --extra openlineage --extra postgres --no-install-project
COPY --from=build-wheel /dist /dist
RUN uv pip install --quiet --python /opt/venv/bin/python --no-deps /dist/*.whl

# Airflow's tasks are clients of Spark Connect: no Java, none of Spark's 460 MB of jars
FROM build-all AS build-without-spark
RUN rm -rf /opt/venv/lib/python3.12/site-packages/pyspark/jars

# ---- what all images have -------------------------------------------------------------------------------------------------------------
FROM ${PYTHON} AS runtime
RUN groupadd --gid 10001 sluice \
 && useradd --uid 10001 --gid sluice --home-dir /var/lib/sluice --no-create-home --shell /usr/sbin/nologin sluice \
 && install --directory --owner sluice --group sluice --mode 750 /var/lib/sluice /var/lib/airflow /var/lib/spark
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MALLOC_ARENA_MAX=2
WORKDIR /opt/sluice
COPY deploy/__init__.py ./deploy/
COPY deploy/start ./deploy/start
USER 10001:10001
ENTRYPOINT ["python", "-m", "deploy.start.secret_files"]

FROM runtime AS pump
COPY --from=build-pump /opt/venv /opt/venv
EXPOSE 8250
HEALTHCHECK --interval=15s --timeout=15s --start-period=3m --retries=4 CMD ["python", "-m", "deploy.start.healthy", "pump", "http://127.0.0.1:8250"]
CMD ["python", "-m", "sluice.pump_service"]

FROM runtime AS airflow
COPY --from=build-without-spark /opt/venv /opt/venv
COPY dags ./dags
COPY airflow.cfg /etc/sluice/airflow.cfg
ENV AIRFLOW_HOME=/var/lib/airflow AIRFLOW_CONFIG=/etc/sluice/airflow.cfg AIRFLOW__CORE__DAGS_FOLDER=/opt/sluice/dags
EXPOSE 8080 8249
HEALTHCHECK --interval=15s --timeout=15s --start-period=3m --retries=4 CMD ["python", "-m", "deploy.start.healthy", "airflow", "http://127.0.0.1:8080", "metadatabase"]
CMD ["airflow", "api-server"]

FROM runtime AS spark
USER 0:0
# hadolint ignore=DL3008
RUN apt-get update \
 && mkdir -p /usr/share/man/man1 \
 && apt-get install --yes --no-install-recommends openjdk-21-jre-headless \
 && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=build-all /opt/venv /opt/venv
ENV SPARK_CONF_DIR=/etc/spark SPARK_WORKER_DIR=/var/lib/spark PYSPARK_PYTHON=/opt/venv/bin/python
COPY deploy/compose/spark /etc/spark
EXPOSE 7077 7078 8080 8081 15002
HEALTHCHECK --interval=15s --timeout=15s --start-period=3m --retries=4 CMD ["python", "-m", "deploy.start.healthy", "grpc", ":15002"]
CMD ["sluice", "spark", "connect"]

# To try it without a TiDB; the same files as airflow's
FROM airflow AS standin
EXPOSE 2379 2380 4000
HEALTHCHECK --interval=15s --timeout=15s --start-period=1m --retries=4 CMD ["python", "-m", "deploy.start.healthy", "http", "http://127.0.0.1:2380/status"]
CMD ["python", "-m", "deploy.start.standin", "0.0.0.0"]
