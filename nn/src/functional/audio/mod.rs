//! Transforms of audio signals on top of Fourier transforms, by the definitions of torchaudio.

mod companding;
mod decibel;
mod mel;
mod resample;
mod spectrogram;

pub use self::mel::{MelFilterbank, MelScale};
pub use self::resample::{Resample, ResampleOptions, ResampleWindow};
pub use self::spectrogram::Spectrogram;
