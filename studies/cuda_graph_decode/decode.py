# SPDX-License-Identifier: Apache-2.0
"""One decode step at batch 1, in torch, by five ways to bring its kernels to the device:

    eager               the model's forward: every kernel is launched by Python
    compile             torch.compile: fewer kernels, each still launched by the host
    reduce-overhead     torch.compile(mode="reduce-overhead"): torch captures graphs itself and replays them
    graph               one eager step captured by hand
    compile + graph     the compiled step captured by hand

A step is `forward` with a static cache, then the likeliest token, which stays on the device where the next step reads
it. The cache counts its keys on the device too (transformers' StaticCache), so a step is the same kernels every time.
"""

import torch

from .models import new_cache

WAYS = ["eager", "compile", "reduce-overhead", "graph", "compile + graph"]
WARM_UP = 3  # steps before a capture: cuBLAS takes its workspace, Triton its kernels


class Decoder:
    """A model, its cache, and the step in some of the ways. `token` [1, 1] is what the next step reads."""

    def __init__(self, model, length=1024):
        self.model = model
        self.cache = new_cache(model, length)
        self.token = torch.zeros(1, 1, dtype=torch.int64, device=model.lm_head.weight.device)
        self.graphs = {}  # by way; what replays it must live as long
        torch._dynamo.mark_static_address(self.token)

    def forward(self, ids):
        """The likeliest token after each sequence of ids [1, n]."""
        logits = self.model(ids, past_key_values=self.cache, use_cache=True).logits
        return logits[:, -1:].argmax(-1)

    def step(self, way):
        """A function without arguments that makes one step."""
        if way == "eager":
            return self.stepper(self.forward)
        if way == "compile":
            return self.stepper(torch.compile(lambda ids: self.forward(ids), fullgraph=True))
        if way == "reduce-overhead":
            compiled = torch.compile(lambda ids: self.forward(ids), fullgraph=True, mode="reduce-overhead")
            return self.stepper(compiled, mark=torch.compiler.cudagraph_mark_step_begin)
        return self.captured(self.step("eager" if way == "graph" else "compile"), way)

    def stepper(self, forward, mark=None):
        def step():
            if mark:
                mark()
            with torch.no_grad():
                self.token.copy_(forward(self.token))

        return step

    def captured(self, step, way):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graphs[way] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graphs[way]):
            step()
        return self.graphs[way].replay

    def rewind(self, keys=0):
        """The cache holds so many keys; those after them are overwritten."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(keys)

    def prompt(self, ids):
        """The cache of a prompt alone, and its next token."""
        self.rewind()
        with torch.no_grad():
            ids = torch.tensor([ids], device=self.token.device)
            self.token.copy_(self.forward(ids))

    def generate(self, ids, count, step=None):
        """`count` tokens, always the likeliest."""
        step = step or self.step("eager")
        self.prompt(ids)
        found = [int(self.token)]
        while len(found) < count:
            step()
            found.append(int(self.token))
        return found


def margin(model, ids, one, other):
    """How much less likely the second token is than the first after these ids: the difference of their logits."""
    with torch.no_grad():
        logits = model(torch.tensor([ids], device=model.lm_head.weight.device)).logits[0, -1].float()
    return float(logits[one] - logits[other])


def common(a, b):
    """Tokens that both begin with."""
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count
