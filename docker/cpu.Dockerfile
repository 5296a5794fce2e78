# scs-supcon for CPUs. Build from the root of the repository:
#   docker build -f docker/cpu.Dockerfile -t scs-supcon .
#   docker run --rm -v "$PWD:/work" scs-supcon train birds --out runs/birds
# The default PyTorch wheels include CUDA. For a smaller image pass the address of PyTorch's index of
# CPU wheels: --build-arg TORCH_INDEX=...
FROM python:3.11-slim
ARG TORCH_INDEX=""
WORKDIR /opt/scs-supcon
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch torchvision \
 && pip install --no-cache-dir '.[train,onnx]'
ENV ORT_DISABLE_TELEMETRY=1
WORKDIR /work
ENTRYPOINT ["scs"]
CMD ["--help"]
