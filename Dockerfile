# A service in a container: mounts a model at /model, needs a token, runs as an ordinary user.
#   docker build --tag vitlab .
#   docker run --publish 127.0.0.1:8000:8000 --volume "$PWD/model:/model:ro" --env VITLAB_TOKEN vitlab
# tests/service/test_container.py runs the RUN and CMD lines below in a fresh environment.
FROM python:3.11-slim
# Where pip finds other builds of torch, such as one without CUDA: docker build --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL
WORKDIR /app
COPY pyproject.toml README.md LICENSE NOTICE constraints.txt ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt ".[serve]"
RUN useradd --create-home --uid 10001 vitlab
USER vitlab
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/ready')"]
CMD ["vitlab", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
