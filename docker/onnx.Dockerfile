# An exported model as a service, without PyTorch. Build from the root of the repository:
#   scs export runs/birds --onnx -o birds.onnx
#   docker build -f docker/onnx.Dockerfile -t scs-serve .
#   docker run --rm -p 8000:8000 -e SCS_TOKEN=secret -v "$PWD:/models:ro" scs-serve /models/birds.onnx
FROM python:3.11-slim
WORKDIR /opt/scs-supcon
COPY docker/onnx-requirements.txt constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt -r onnx-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --no-deps .
ENV ORT_DISABLE_TELEMETRY=1
USER nobody
EXPOSE 8000
ENTRYPOINT ["scs", "serve", "--host", "0.0.0.0", "--onnx"]
