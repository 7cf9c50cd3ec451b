# A server for one finished run, on the CPU, without root. docs/guide/install.md says how to start it.
FROM python:3.12-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 REDX_CACHE=/cache

RUN useradd --uid 10001 --create-home redx && install -d -o redx -g redx /cache /run-folder

WORKDIR /source
COPY constraints.txt pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
# torch first and from its CPU index: what PyPI has for Linux brings gigabytes of CUDA packages
RUN pip install --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' constraints.txt)" \
    && pip install -c constraints.txt '.[serve,text]' \
    && rm -rf /source/*

USER redx
WORKDIR /home/redx
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["redx", "serve", "/run-folder", "--host", "0.0.0.0", "--port", "8000"]
