"""Recurrent layers. Outputs are the sequence (or what stands for it), then h (and c) of each state."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from case import Suite

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU, "recurrent": nn.RNN}


class Rnn(nn.Module):
    """PyTorch's module with the arguments and results of the entry."""

    def __init__(self, kind, i, h, return_sequences=True, merge_mode="concat", bidirectional=False, **options):
        super().__init__()
        self.hidden = [CELLS[kind](i, h, batch_first=True, bidirectional=bidirectional, **options)]
        for n, p in self.hidden[0].named_parameters():
            self.register_parameter(n, p)
        self.kind, self.sequences, self.merge_mode, self.both = kind, return_sequences, merge_mode, bidirectional
        self.stacked = bidirectional or options.get("num_layers", 1) > 1

    def forward(self, x, h0=None, c0=None, lengths=None):
        """`h0` and `c0` are `[B, H]`, of several layers or directions `[layers * directions, B, H]`."""
        wide = lambda t: t if t is None or self.stacked else t[None]
        state = None if h0 is None else (wide(h0), wide(c0)) if self.kind == "lstm" else wide(h0)
        steps = x.shape[-2]
        if lengths is not None:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        call = torch.func.functional_call
        y, last = call(self.hidden[0], dict(self.named_parameters()), (x, state))
        if lengths is not None:
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=steps)
        parts = list(last) if self.kind == "lstm" else [last]
        # Layer by layer, in each the forward direction first.
        finals = [t[k] for k in range(len(parts[0])) for t in parts]
        if not self.sequences:
            y = torch.cat([parts[0][-2], parts[0][-1]], -1) if self.both else parts[0][-1]
        return [*self.merged(y), *finals]

    def merged(self, y):
        if not self.both or self.merge_mode == "concat":
            return [y]
        a, b = y.chunk(2, -1)
        return {"sum": [a + b], "mul": [a * b], "ave": [(a + b) / 2], "none": [a, b]}[self.merge_mode]


def one_direction(s, entry):
    def case(label, i, h, inputs, training=True, lazy=False, **options):
        config = {"hidden_size": h, **options, **({} if lazy else {"input_size": i})}
        s.case(
            entry,
            label,
            config,
            Rnn(entry, i, h, **options),
            inputs,
            training=training,
            lazy=lazy,
            call=lambda m, **v: m(**v),
        )

    def initial(b, h):
        shape = (b, h) if b else (h,)
        return {"h0": shape, "c0": shape} if entry == "lstm" else {"h0": shape}

    case("sequence", 3, 4, {"x": (2, 5, 3)})
    case("initial_no_bias", 2, 3, {"x": (3, 4, 2), **initial(3, 3)}, bias=False)
    case("unbatched_lazy", 4, 2, {"x": (3, 4)}, lazy=True)
    case("unbatched_initial", 2, 3, {"x": (4, 2), **initial(0, 3)}, training=False)
    case("lengths", 3, 3, {"x": (4, 5, 3), **initial(4, 3), "lengths": torch.tensor([5, 1, 3, 4])})
    case("last_of_lengths", 2, 5, {"x": (2, 4, 2), "lengths": torch.tensor([2, 4])}, return_sequences=False)
    case("last_eval", 3, 2, {"x": (3, 4, 3)}, return_sequences=False, training=False)
    case("wide", 9, 17, {"x": (5, 3, 9)})
    case("two_layers", 3, 4, {"x": (2, 4, 3)}, num_layers=2)
    case(
        "three_layers_lengths_last",
        2,
        3,
        {"x": (2, 4, 2), "lengths": torch.tensor([4, 2])},
        num_layers=3,
        return_sequences=False,
    )
    stacked = {n: (2, *shape) for n, shape in initial(3, 2).items()}
    case("two_layers_initial_lengths", 3, 2, {"x": (3, 4, 3), **stacked, "lengths": torch.tensor([4, 1, 3])}, num_layers=2)
    deep = {n: (3, *shape) for n, shape in initial(0, 2).items()}
    case("three_layers_unbatched_initial", 3, 2, {"x": (4, 3), **deep}, num_layers=3, bias=False)
    if entry == "recurrent":
        case("relu", 3, 4, {"x": (2, 5, 3), "h0": (2, 4)}, nonlinearity="relu")
        case(
            "relu_lengths_no_bias",
            2,
            3,
            {"x": (2, 4, 2), "lengths": torch.tensor([3, 4])},
            nonlinearity="relu",
            bias=False,
        )


def bidirectional(s):
    def case(label, kind, i, h, inputs, merge_mode="concat", training=True, **inner):
        own = {"type": kind, "input_size": i, "hidden_size": h, **inner}
        config = {"inner": own, **({} if merge_mode == "concat" else {"merge_mode": merge_mode})}
        s.case(
            "bidirectional",
            label,
            config,
            Rnn(kind, i, h, merge_mode=merge_mode, bidirectional=True, **inner),
            inputs,
            training=training,
            call=lambda m, **v: m(**v),
        )

    case("lstm", "lstm", 3, 2, {"x": (2, 4, 3)})
    case("gru_initial", "gru", 2, 3, {"x": (2, 3, 2), "h0": (2, 2, 3)})
    case(
        "lstm_initial_lengths",
        "lstm",
        2,
        3,
        {"x": (3, 4, 2), "h0": (2, 3, 3), "c0": (2, 3, 3), "lengths": torch.tensor([2, 4, 1])},
    )
    case("rnn_sum", "recurrent", 3, 4, {"x": (2, 5, 3)}, "sum")
    case("gru_mul_no_bias", "gru", 3, 2, {"x": (2, 3, 3)}, "mul", bias=False)
    case("lstm_ave_eval", "lstm", 2, 2, {"x": (1, 4, 2)}, "ave", training=False)
    case("gru_none_lengths", "gru", 2, 2, {"x": (2, 3, 2), "lengths": torch.tensor([3, 2])}, "none")
    case("lstm_last", "lstm", 3, 2, {"x": (2, 4, 3)}, return_sequences=False)
    case(
        "gru_last_of_lengths",
        "gru",
        3,
        2,
        {"x": (3, 4, 3), "lengths": torch.tensor([1, 4, 3])},
        return_sequences=False,
    )
    case("unbatched", "recurrent", 3, 2, {"x": (4, 3)}, nonlinearity="relu")
    case("two_layers", "lstm", 3, 2, {"x": (2, 4, 3)}, num_layers=2)
    case("two_layers_lengths", "gru", 2, 3, {"x": (3, 4, 2), "lengths": torch.tensor([4, 2, 1])}, num_layers=2)
    case(
        "two_layers_initial_lengths",
        "lstm",
        3,
        2,
        {"x": (2, 3, 3), "h0": (4, 2, 2), "c0": (4, 2, 2), "lengths": torch.tensor([2, 3])},
        num_layers=2,
    )

    shorter = torch.tensor([1, 4, 3])
    case("two_layers_last_of_lengths", "gru", 3, 2, {"x": (3, 4, 3), "lengths": shorter}, num_layers=2, return_sequences=False)
    inputs = {"x": (3, 4, 2), "h0": (6, 3, 2), "lengths": shorter}
    case("three_layers_initial_lengths", "recurrent", 2, 2, inputs, num_layers=3)
    case("two_layers_initial", "gru", 2, 3, {"x": (2, 3, 2), "h0": (4, 2, 3)}, num_layers=2, bias=False)

    class Unlike(nn.Module):
        """A GRU forward and an Elman network backward."""

        def __init__(self, i, h):
            super().__init__()
            ahead, back = nn.GRU(i, h, batch_first=True), nn.RNN(i, h, batch_first=True)
            self.hidden = [ahead, back]
            for n, p in ahead.named_parameters():
                self.register_parameter(n, p)
            for n, p in back.named_parameters():
                self.register_parameter(f"{n}_reverse", p)

        def forward(self, x):
            own = dict(self.named_parameters())
            call = torch.func.functional_call
            names = [n for n in own if not n.endswith("_reverse")]
            y, h = call(self.hidden[0], {n: own[n] for n in names}, (x,))
            z, g = call(self.hidden[1], {n: own[f"{n}_reverse"] for n in names}, (x.flip(1),))
            return [torch.cat([y, z.flip(1)], -1), h[0], g[0]]

    inner = {"type": "gru", "input_size": 3, "hidden_size": 2}
    other = {"type": "recurrent", "input_size": 3, "hidden_size": 2}
    s.case(
        "bidirectional",
        "unlike_directions",
        {"inner": inner, "backward_inner": other},
        Unlike(3, 2),
        {"x": (2, 3, 3)},
    )


class ConvLstm(nn.Module):
    def __init__(
        self, c, f, k, stride=1, padding="same", dilation=1, bias=True, peephole=None, return_sequences=True
    ):
        super().__init__()
        kh, kw = k if isinstance(k, list) else (k, k)
        self.weight_ih = nn.Parameter(torch.empty(4 * f, c, kh, kw))
        self.weight_hh = nn.Parameter(torch.empty(4 * f, f, kh, kw))
        self.register_parameter("bias", nn.Parameter(torch.empty(4 * f)) if bias else None)
        if peephole:
            self.w_ci, self.w_cf, self.w_co = (nn.Parameter(torch.empty(f, *peephole)) for _ in range(3))
        self.peephole, self.how, self.sequences = peephole, (stride, padding, dilation), return_sequences
        self.f, self.around = f, (kh // 2, kw // 2)

    def forward(self, x, h0=None, c0=None):
        h, c, seen = h0, c0, []
        for t in range(x.shape[1]):
            a = F.conv2d(x[:, t], self.weight_ih, self.bias, *self.how)
            if h is None:
                h = c = torch.zeros(a.shape[0], self.f, *a.shape[2:], dtype=a.dtype)
            i, f, g, o = (a + F.conv2d(h, self.weight_hh, padding=self.around)).chunk(4, 1)
            if self.peephole:
                i, f = i + self.w_ci * c, f + self.w_cf * c
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            if self.peephole:
                o = o + self.w_co * c
            h = torch.sigmoid(o) * torch.tanh(c)
            seen.append(h)
        return [torch.stack(seen, 1) if self.sequences else h, h, c]


def conv_lstm(s):
    def case(label, x, f, k, inputs=None, training=True, lazy=False, peephole=None, **options):
        config = {"filters": f, "kernel_size": k, **options, **({} if lazy else {"in_channels": x[2]})}
        if peephole:
            config["peephole"] = True
        s.case(
            "conv_lstm",
            label,
            config,
            ConvLstm(x[2], f, k, peephole=peephole, **options),
            {"x": x, **(inputs or {})},
            training=training,
            lazy=lazy or peephole is not None,
            call=lambda m, **v: m(**v),
        )

    case("same", (2, 3, 2, 4, 3), 2, 3)
    case("initial_no_bias", (2, 2, 1, 3, 4), 2, [1, 3], {"h0": (2, 2, 3, 4), "c0": (2, 2, 3, 4)}, bias=False)
    case("stride_padding_dilation", (1, 2, 2, 6, 5), 2, 3, stride=2, padding=1, dilation=2)
    case("peephole", (2, 3, 1, 3, 2), 2, 3, peephole=(3, 2))
    case("peephole_initial", (1, 2, 2, 2, 2), 1, 1, {"h0": (1, 1, 2, 2), "c0": (1, 1, 2, 2)}, peephole=(2, 2))
    case("last_lazy_eval", (1, 3, 3, 3, 3), 1, 3, lazy=True, return_sequences=False, training=False)
    case("dilated_same", (1, 2, 1, 5, 5), 1, 3, dilation=2)


def recurrent():
    s = Suite("recurrent")
    for entry in ("lstm", "gru", "recurrent"):
        one_direction(s, entry)
    bidirectional(s)
    conv_lstm(s)
    return s
