"""llama.cpp's own HTTP server, as the xllamacpp wheel carries it, with the arguments that eyas needs.

    python llamacpp_server.py --model FILE.gguf --alias NAME --host 127.0.0.1 --port 8080 [--draft EAGLE3.gguf]

Runs in the engine's environment and imports nothing of eyas.
"""

from __future__ import annotations

import argparse
import signal
from typing import Any


def main() -> None:
    """Serve until told to stop."""
    options = _options()
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # before threads are started, which inherit it
    import xllamacpp  # pyright: ignore[reportMissingImports]

    server = xllamacpp.Server(_parameters(xllamacpp, options))
    print(f"serving at {server.listening_address}", flush=True)
    signal.sigwait(stops)


def _parameters(xllamacpp: Any, options: argparse.Namespace) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.model
    parameters.model_alias = {options.alias} if isinstance(parameters.model_alias, set) else [options.alias]
    parameters.hostnames, parameters.port = [options.host], options.port
    parameters.n_ctx, parameters.n_parallel = options.context, options.parallel
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options.threads
    parameters.n_gpu_layers = options.gpu_layers
    parameters.endpoint_metrics = parameters.endpoint_slots = parameters.endpoint_props = True
    kinds = xllamacpp.common_speculative_type
    if options.ngram:
        parameters.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        parameters.speculative.ngram_simple.size_n = options.ngram
        parameters.speculative.ngram_simple.size_m = options.draft_tokens
    if options.draft:
        parameters.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3]
        parameters.speculative.draft.mparams.path = options.draft
        parameters.speculative.draft.n_max = options.draft_tokens
        parameters.speculative.draft.p_min = 0.0
    return parameters


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="llama.cpp's server")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--alias", required=True, help="name under which it is served")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context", type=int, default=32768, help="tokens, of all requests together")
    parser.add_argument("--parallel", type=int, default=8, help="requests at a time")
    parser.add_argument("--threads", type=int, default=1, help="idle ones spin: no more than there are free cores")
    parser.add_argument("--gpu-layers", type=int, default=0, help="layers on a GPU")
    parser.add_argument("--draft", default="", help="GGUF file of an EAGLE-3 draft")
    parser.add_argument("--ngram", type=int, default=0, help="length of a suffix that is looked up; 0 does not")
    parser.add_argument("--draft-tokens", type=int, default=3, help="tokens drafted per verify step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
