"""Writes audio.json beside this file: transforms of audio signals with torchaudio's values and gradients, in the format of operators.py. `python
audio.py`, with PyTorch and torchaudio."""

import math

import torch
import torchaudio.functional as A
import torchaudio.transforms as T

import operators as o
from operators import case, ints, t

pairs, complexes = torch.view_as_real, torch.view_as_complex


def numbers():
    z = t([[3.0, 4.0], [0.0, 0.0]], [[-1.0, 0.5], [0.25, -2.0]])
    case("complex_conj", lambda x: pairs(complexes(x).conj().resolve_conj()), z)
    case("complex_abs", lambda x: complexes(x).abs(), z)
    case("complex_angle", lambda x: complexes(x).angle(), z)
    case("complex_mul", lambda x, y: pairs(complexes(x) * complexes(y)), (3, 1, 2), (2, 2))
    case("cross_spectrum", lambda x, y: pairs(complexes(x) * complexes(y).conj()), (3, 2), (2, 3, 2))
    # PyTorch takes magnitudes for positive.
    case("polar", lambda r, a: pairs(torch.polar(r, a)), t([0.5, 1.0, 2.0], [0.25, 3.0, 0.75]), (2, 3))


def spectra():
    window = torch.hann_window(6)
    for power, pad, norm, center in ((2.0, 0, False, True), (1.0, 2, "frame_length", False), (0.7, 0, "window", True)):
        f = lambda x, w, **k: A.spectrogram(x, window=w, n_fft=8, hop_length=3, win_length=6, **k)
        args = {"power": power, "pad": pad, "normalized": norm, "center": center}
        case("spectrogram", f, (2, 20), window, **args)
    for rate in (1.3, 0.6, 1.0):
        advance = torch.linspace(0, math.pi * 3, 5)[:, None]
        f = lambda x, a, rate: pairs(A.phase_vocoder(complexes(x), rate, a) + 0)
        case("phase_vocoder", f, (2, 5, 7, 2), advance, rate=rate)
    f = lambda x, w: torch.fft.irfft2(torch.fft.rfft2(x) * complexes(w), s=x.shape[-2:])
    case("spectral_filter", f, (2, 3, 4, 5), (3, 4, 3, 2))
    case("spectral_filter", f, (3, 6), (3, 4, 2))


def mels():
    like = torch.zeros(1)
    banks = [
        (33, 0.0, 8000.0, 5, 16000, None, "htk"),
        (20, 50.0, 3000.0, 4, 8001, "slaney", "slaney"),
        (17, 300.0, 4000.0, 6, 8000, "slaney", "htk"),
    ]
    for n, lo, hi, mels, rate, norm, scale in banks:
        args = {"n_freqs": n, "f_min": lo, "f_max": hi, "n_mels": mels, "sample_rate": rate, "norm": norm, "mel_scale": scale}
        case("mel_filterbank", lambda like, **k: A.melscale_fbanks(**k), like, grad=False, **args)
    for ortho in (False, True):
        case("dct_matrix", lambda like, ortho: A.create_dct(4, 7, "ortho" if ortho else None), like, grad=False, ortho=ortho)
    bank = A.melscale_fbanks(9, 0.0, 4000.0, 4, 8000)
    case("mel_scale", lambda x, f: (x.mT @ f).mT, (2, 9, 3), bank)
    for log in (False, True):
        dct = A.create_dct(3, 4, "ortho")
        db = lambda x: torch.log(x + 1e-6) if log else A.amplitude_to_DB(x, 10.0, 1e-10, 0.0, 80.0)
        case("mfcc", lambda x, d, log: (db(x.square() + 1e-12).mT @ d).mT, (2, 4, 5), dct, log=log)
    for window in (3, 5, 6):
        case("deltas", lambda x, win_length: A.compute_deltas(x, win_length), (2, 3, 9), win_length=window)


def loudness():
    quiet = t([[1.0, 1e-3, 0.0, 1e-12], [4.0, 2.0, 1e-7, 0.5]], [[0.1, 0.2, 0.3, 1e-4], [0.0, 1e-9, 1e-5, 3.0]])
    for shape in ((2, 2, 4), (4, 1, 2, 2), (2, 8)):
        for op, factor in (("power_to_db", 10.0), ("amplitude_to_db", 20.0)):
            for reference, amin, top in ((1.0, 1e-10, 35.0), (0.5, 1e-5, None)):
                # Distinct largest values: ties are shared otherwise.
                f = lambda x, reference, amin, top_db: A.amplitude_to_DB(
                    x, factor, amin, math.log10(max(amin, reference)), top_db)
                case(op, f, quiet.reshape(shape), reference=reference, amin=amin, top_db=top)
    case("db_to_power", lambda x, reference: A.DB_to_amplitude(x, reference, 1.0), (2, 3), reference=2.0)
    case("db_to_amplitude", lambda x, reference: A.DB_to_amplitude(x, reference, 0.5), (2, 3), reference=2.0)
    like = torch.zeros(1)
    samples = t(-1.0, -0.6, -0.01, 0.0, 0.003, 0.3, 0.9, 1.0)
    for channels in (256, 9):
        case("mu_law_encode", A.mu_law_encoding, samples, grad=False, quantization_channels=channels)
        decode = lambda x, like, **k: A.mu_law_decoding(x.double(), **k)
        case("mu_law_decode", decode, ints(0, 1, 3, 4, 5, 8), like, grad=False, quantization_channels=channels)


def rates():
    # Filters in this dtype, as torchaudio computes them without one in float32.
    def resample(x, a, b, width, rolloff, beta):
        method = "sinc_interp_hann" if beta is None else "sinc_interp_kaiser"
        f = T.Resample(a, b, method, width, rolloff, beta, dtype=torch.float64)
        return f(x)
    for a, b, width, rolloff, beta in ((3, 2, 6, 0.99, None), (4, 10, 3, 0.9, None), (16000, 8000, 5, 0.99, 14.0), (7, 7, 6, 0.99, None)):
        case("resample", resample, (2, 1, 23), a=a, b=b, width=width, rolloff=rolloff, beta=beta)


if __name__ == "__main__":
    for family in (numbers, spectra, mels, loudness, rates):
        family()
    o.write("audio.json")
