//! Transforms of audio signals against torchaudio's values and gradients (tests/golden/audio.py), and what they refuse.

use trefoil::DType;
use trefoil_nn::{
    FftNorm, MelFilterbank, MelScale, Resample, ResampleOptions, ResampleWindow, Spectrogram, Stft, Tensor,
};

use crate::common::calls::{Args, Golden, Outputs, one};
use crate::common::everywhere::values;
use crate::common::{close, cpu, tensor};

fn numbers(op: &str, _: &Args, t: &[Tensor]) -> Outputs {
    match op {
        "complex_conj" => one(t[0].complex_conj()),
        "complex_abs" => one(t[0].complex_abs()),
        "complex_angle" => one(t[0].complex_angle()),
        "complex_mul" => one(t[0].complex_mul(&t[1])),
        "cross_spectrum" => one(t[0].cross_spectrum(&t[1])),
        "polar" => one(t[0].polar(&t[1])),
        _ => None,
    }
}

fn spectra(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    match op {
        "spectrogram" => {
            let norm = a.text("normalized");
            let stft = Stft::new(8).hop(3).center(a.flag("center")).normalized(norm == "frame_length");
            let p = Spectrogram::new(stft).power(a.num("power")).pad(a.size("pad"));
            one(t[0].spectrogram(&t[1], &p.window_norm(norm == "window")))
        }
        "phase_vocoder" => one(t[0].phase_vocoder(a.num("rate"), &t[1])),
        "spectral_filter" => one(t[0].spectral_filter(&t[1])),
        _ => None,
    }
}

fn mels(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let (device, dtype) = (t[0].device(), t[0].dtype());
    match op {
        "mel_filterbank" => {
            let scale = if a.text("mel_scale") == "slaney" { MelScale::Slaney } else { MelScale::Htk };
            let p = MelFilterbank::new(a.size("n_freqs"), a.size("sample_rate")).n_mels(a.size("n_mels"));
            let p = p.range(a.num("f_min"), a.num("f_max")).scale(scale);
            one(Tensor::mel_filterbank(device, dtype, &p.slaney_norm(a.text("norm") == "slaney")))
        }
        "dct_matrix" => one(Tensor::dct_matrix(device, dtype, 4, 7, a.flag("ortho"))),
        "mel_scale" => one(t[0].mel_scale(&t[1])),
        "mfcc" => {
            one(t[0].square().and_then(|x| x.add_scalar(1e-12)).and_then(|x| x.mfcc(&t[1], a.flag("log"))))
        }
        "deltas" => one(t[0].deltas(a.size("win_length"))),
        _ => None,
    }
}

fn loudness(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let (reference, amin, top) = (|| a.num("reference"), || a.num("amin"), a.0["top_db"].as_f64());
    let channels = || a.size("quantization_channels");
    match op {
        "power_to_db" => one(t[0].power_to_db(reference(), amin(), top)),
        "amplitude_to_db" => one(t[0].amplitude_to_db(reference(), amin(), top)),
        "db_to_power" => one(t[0].db_to_power(reference())),
        "db_to_amplitude" => one(t[0].db_to_amplitude(reference())),
        "mu_law_encode" => one(t[0].mu_law_encode(channels())),
        "mu_law_decode" => one(t[0].mu_law_decode(channels(), t[1].dtype())),
        _ => None,
    }
}

fn rates(op: &str, a: &Args, t: &[Tensor]) -> Outputs {
    let window = a.0["beta"].as_f64().map_or(ResampleWindow::Hann, ResampleWindow::Kaiser);
    let p = ResampleOptions::default().width(a.size("width")).rolloff(a.num("rolloff")).window(window);
    match op {
        "resample" => one(Resample::new(t[0].device(), t[0].dtype(), a.size("a"), a.size("b"), &p)
            .and_then(|r| r.forward(&t[0]))),
        _ => None,
    }
}

#[test]
fn transforms_have_the_values_of_torchaudio() {
    let golden = Golden {
        file: "audio.json",
        least: 40,
        families: &[numbers, spectra, mels, loudness, rates],
        // Tables that the host computes.
        copying: &["mel_filterbank", "dct_matrix", "resample"],
    };
    golden.check_everywhere();
}

#[test]
fn a_tone_keeps_its_pitch_at_another_rate() {
    let tone = |rate: f64, n: usize| -> Vec<f64> {
        (0..n).map(|i| (i as f64 / rate * 440.0 * std::f64::consts::TAU).sin()).collect()
    };
    let x = Tensor::from_slice(&cpu(), &tone(8000.0, 800), &[800]).unwrap();
    let p = ResampleOptions::default().width(64);
    let y = Resample::new(&cpu(), DType::F64, 8000, 12_000, &p).unwrap().forward(&x).unwrap();
    assert_eq!(y.shape(), [1200]);
    // Far from the ends, where the signal goes on with zeros.
    close(&values(&y)[200..1000], &tone(12_000.0, 1200)[200..1000], 2e-3, "a tone");
}

#[test]
fn audio_of_other_shapes_is_refused() {
    let d = cpu();
    let x = tensor(&d, &[2, 12], 3);
    let pairs = tensor(&d, &[3, 4, 2], 4);
    let refused = |t: trefoil_nn::Result<Tensor>, what: &str| {
        let e = t.unwrap_err().to_string();
        assert!(e.contains(what), "{e}");
    };
    refused(x.complex_abs(), "pairs");
    refused(x.polar(&pairs), "broadcast");
    refused(x.spectrogram(&x.select(0, 0).unwrap(), &Spectrogram::new(Stft::new(12)).power(0.0)), "power");
    refused(pairs.phase_vocoder(0.0, &tensor(&d, &[3, 1], 1)), "above 0");
    refused(pairs.phase_vocoder(f64::NAN, &tensor(&d, &[3, 1], 1)), "above 0");
    refused(pairs.phase_vocoder(2.0, &x), "[bins, 1]");
    refused(x.spectral_filter(&pairs), "[.., H, W / 2 + 1, 2]");
    refused(x.deltas(2), "3 to");
    refused(x.power_to_db(1.0, 0.0, None), "amin above 0");
    refused(x.mu_law_encode(1), "2 to");
    refused(x.mu_law_decode(256, DType::I32), "floating-point");
    let bank = MelFilterbank::new(5, 8000);
    for p in [bank.n_mels(0), bank.range(500.0, 400.0), bank.range(-1.0, 400.0), bank.range(0.0, f64::NAN)] {
        refused(Tensor::mel_filterbank(&d, DType::F32, &p), "f_min < f_max");
    }
    refused(Tensor::mel_filterbank(&d, DType::I64, &bank), "floating-point");
    refused(Tensor::dct_matrix(&d, DType::F32, 0, 3, true), "2^26");
    refused(x.mel_scale(&tensor(&d, &[5, 3], 1)), "");
    let p = ResampleOptions::default();
    for (from, to, p) in
        [(0, 3, p), (3, 0, p), (3, 2, p.width(0)), (3, 2, p.rolloff(-1.0)), (99_991, 99_989, p)]
    {
        assert!(Resample::new(&d, DType::F32, from, to, &p).is_err(), "{from} to {to}");
    }
    assert!(x.spectral_filter(&tensor(&d, &[2, 7, 2], 2)).unwrap().rfft(-1, FftNorm::Ortho).is_ok());
}
