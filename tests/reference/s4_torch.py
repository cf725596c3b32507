"""S4Model with S4D or DSS layers, written from the published formulas.

The tensor names, shapes and formulas are those of `example.py` and the
standalone S4D of state-spaces/s4, and of the standalone DSS of ag1988/dss, so
that checkpoints move freely between those programs and this file. Sequences
are (batch, length, features) at the model's ends, (batch, channels, length)
inside a layer. `model.double()` computes everything in float64.
"""

import math

import torch
from torch import nn


def real_pair(z):
    """Complex tensor as real one with a trailing axis (re, im)."""
    return torch.view_as_real(z.resolve_conj()).clone()


def complex_of(x):
    return torch.view_as_complex(x.contiguous())


def log_steps(channels, dt_min, dt_max):
    return math.log(dt_min) + torch.rand(channels) * math.log(dt_max / dt_min)


def convolve(u, kernel):
    """Causal convolution of (B, H, L) with (H, L), exact by zero padding."""
    n = u.size(-1)
    y = torch.fft.rfft(u, n=2 * n) * torch.fft.rfft(kernel, n=2 * n)
    return torch.fft.irfft(y, n=2 * n)[..., :n]


class S4DKernel(nn.Module):
    """K[h,l] = 2 Re sum_n C (exp(lambda dt) - 1)/lambda exp(lambda dt l)."""

    def __init__(self, channels, modes=32, dt_min=1e-3, dt_max=1e-1):
        super().__init__()
        c = torch.randn(channels, modes, dtype=torch.cfloat)
        self.C = nn.Parameter(real_pair(c))
        self.log_dt = nn.Parameter(log_steps(channels, dt_min, dt_max))
        self.log_A_real = nn.Parameter(torch.full((channels, modes), math.log(0.5)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(modes).float().repeat(channels, 1))

    def forward(self, length):
        a = torch.complex(-self.log_A_real.exp(), self.A_imag)
        z = a * self.log_dt.exp().unsqueeze(-1)
        c = complex_of(self.C) * (z.exp() - 1) / a
        powers = torch.exp(z.unsqueeze(-1) * torch.arange(length))
        return 2 * torch.einsum("hn,hnl->hl", c, powers).real


class S4D(nn.Module):
    """Convolution and skip, GELU, then a 1x1 convolution to 2H channels and GLU."""

    def __init__(self, channels, modes=32, **kernel):
        super().__init__()
        self.kernel = S4DKernel(channels, modes, **kernel)
        self.D = nn.Parameter(torch.randn(channels))
        self.output_linear = nn.Sequential(nn.Conv1d(channels, 2 * channels, 1), nn.GLU(dim=-2))

    def forward(self, u):
        y = convolve(u, self.kernel(u.size(-1))) + self.D.unsqueeze(-1) * u
        return self.output_linear(nn.functional.gelu(y))


class DSSKernel(nn.Module):
    """Kernel of the standalone DSS; all N modes are stored and K = Re(sum), without a 2.

    `per_channel=True` is not in the original: each channel has poles of its
    own, as balanced truncation gives them. To load such a checkpoint in the
    original `dss.py`, three things change:
      1. in `DSSKernel.init`, the shape of Lambda: (N, 2) becomes (H, N, 2),
         so (N) becomes (H, N) for Lambda_log_neg_re, Lambda_im, Lambda_log_im;
      2. `Lambda[:,0]` and `Lambda[:,1]` become `Lambda[...,0]`, `Lambda[...,1]`
         (in `__init__`, and in `_Lambda` for the clip versions);
      3. in `forward`, with sep_dt_re_im: `_c2r(Lambda).unsqueeze(0)` becomes
         `_c2r(Lambda)`.
    """

    VERSIONS = ("softmax", "exp", "exp-re-im", "exp-no-scale", "clip", "clip-no-scale")
    EPSILON = 1e-7
    MAX_REAL = 1e-4

    def __init__(self, channels, modes, version="softmax", sep_dt_re_im=True, per_channel=False, dt_min=1e-3, dt_max=1e-1):
        super().__init__()
        assert version in self.VERSIONS
        self.version = version
        poles = skew_hippo(modes)
        if per_channel:
            poles = poles.repeat(channels, 1)
        log_dt = log_steps(channels, dt_min, dt_max)
        self.log_dt = nn.Parameter(log_dt.view(-1, 1).repeat(1, 2) if sep_dt_re_im else log_dt)
        if "exp" in version:
            self.Lambda_log_neg_re = nn.Parameter(torch.log(-poles.real))
            if "im" in version:
                self.Lambda_log_im = nn.Parameter(torch.log(poles.imag))
            else:
                self.Lambda_im = nn.Parameter(poles.imag.clone())
        else:
            self.Lambda = nn.Parameter(real_pair(poles))
        self.W = nn.Parameter(torch.randn(1, channels, modes, 2))

    def poles(self):
        """Lambda, of shape (N) or (H, N)."""
        if "exp" in self.version:
            imag = self.Lambda_log_im.exp() if "im" in self.version else self.Lambda_im
            return torch.complex(-self.Lambda_log_neg_re.exp(), imag)
        real, imag = self.Lambda.unbind(-1)
        return torch.complex(real.clip(max=self.MAX_REAL) if "clip" in self.version else real, imag)

    def forward(self, length):
        lam = self.poles()
        dt = self.log_dt.exp()
        if dt.ndim == 1:
            z = dt.unsqueeze(-1) * lam
        else:  # one step for the real parts, another for the imaginary parts
            z = torch.complex(dt[:, :1] * lam.real, dt[:, 1:] * lam.imag)
        exponent = z.unsqueeze(-1) * torch.arange(length)
        w = complex_of(self.W)
        if self.version == "softmax":
            growing = (lam.real > 0).to(dt.dtype)  # these are summed from the far end
            exponent = exponent - (z * growing * (length - 1)).unsqueeze(-1)
            z = z * (1 - 2 * growing)
            x = ((z * length).exp() - 1) * lam
            w = w * (z.exp() - 1) * x.conj() / (x * x.conj() + self.EPSILON)
        elif "no-scale" not in self.version:
            w = w * (z.exp() - 1) * lam.conj() / (lam * lam.conj()).real.clamp(self.EPSILON)
        return torch.einsum("chn,hnl->chl", w, exponent.exp()).real[0]


def skew_hippo(modes):
    """The poles -1/2 + i w of the normal part of HiPPO-LegS, largest w > 0 first."""
    x = torch.sqrt(2 * torch.arange(2 * modes, dtype=torch.float64) + 1)
    lower = torch.tril(torch.outer(x, x), diagonal=-1)
    w = torch.linalg.eigvalsh(1j * (lower - lower.T) / 2).flip(0)[:modes]
    return torch.complex(torch.full_like(w, -0.5), w).to(torch.cfloat)


class TransposedLinear(nn.Module):
    """Linear map of the second-to-last axis; the bias is a column."""

    def __init__(self, inputs, outputs):
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs, 1).uniform_(-bound, bound))

    def forward(self, x):
        return self.weight @ x + self.bias


class DSS(nn.Module):
    """Convolution and skip, GELU, linear map; with `glu`, a linear map to 2H and GLU."""

    def __init__(self, channels, modes, glu=False, **kernel):
        super().__init__()
        self.kernel = DSSKernel(channels, modes, **kernel)
        self.D = nn.Parameter(torch.randn(1, channels))
        linear = TransposedLinear(channels, 2 * channels if glu else channels)
        self.output_linear = nn.Sequential(linear, nn.GLU(dim=-2)) if glu else linear

    def forward(self, u):
        y = convolve(u, self.kernel(u.size(-1))) + self.D[0].unsqueeze(-1) * u
        return self.output_linear(nn.functional.gelu(y))


class S4Model(nn.Module):
    """Encoder, residual layers with LayerNorm (post-norm unless told), pooling, decoder.

    `layers` are the sequence layers, already built. `prenorm` and `pool`
    ("mean" or "last") are attributes: they are not in a checkpoint.
    """

    def __init__(self, inputs, outputs, channels, layers, prenorm=False, pool="mean"):
        super().__init__()
        self.prenorm, self.pool = prenorm, pool
        self.encoder = nn.Linear(inputs, channels)
        self.s4_layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in layers)
        self.decoder = nn.Linear(channels, outputs)

    def forward(self, u):
        x = self.encoder(u)
        for layer, norm in zip(self.s4_layers, self.norms):
            z = norm(x) if self.prenorm else x
            x = x + layer(z.transpose(-1, -2)).transpose(-1, -2)
            if not self.prenorm:
                x = norm(x)
        x = x.mean(dim=1) if self.pool == "mean" else x[:, -1]
        return self.decoder(x)
