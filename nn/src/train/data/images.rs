//! Folders of images, one folder per class.

use std::path::{Path, PathBuf};

use image::imageops::FilterType;
use image::{DynamicImage, ImageReader};

use super::{Item, ItemSource, entries};
use crate::core::error::{At, NnError, Result, invalid};
use crate::core::host_tensor::HostTensor;
use crate::core::limits;

/// Channels of the items made from images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Channels {
    /// Luminance: 1.
    Gray,
    /// Red, green, blue: 3; transparency is dropped.
    #[default]
    Rgb,
}

/// The PNG and JPEG files of `root/CLASS/..`, as `torchvision.datasets.ImageFolder`: classes are the folders in alphabetical order,
/// items the files in alphabetical order within each. An item is decoded when it is asked for: u8 `[C, H, W]` and its class id.
#[derive(Debug, Clone)]
pub struct ImageFolder {
    files: Vec<(PathBuf, i64)>,
    names: Vec<String>,
    channels: Channels,
    size: Option<(u32, u32)>,
}

impl ImageFolder {
    /// Lists the files; decodes none. Errors: [`NnError::Io`]; [`NnError::Data`] for a folder without images in folders.
    pub fn open(root: impl AsRef<Path>) -> Result<Self> {
        let root = root.as_ref();
        let (mut files, mut names) = (vec![], vec![]);
        for folder in entries(root)?.into_iter().filter(|p| p.is_dir()) {
            let class = names.len() as i64;
            names.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
            let is_image = |p: &PathBuf| {
                let ending = p.extension().unwrap_or_default().to_ascii_lowercase();
                p.is_file() && ["png", "jpg", "jpeg"].iter().any(|e| ending == *e)
            };
            files.extend(entries(&folder)?.into_iter().filter(is_image).map(|p| (p, class)));
        }
        if files.is_empty() {
            return Err(NnError::data(root, At::File, "folders with PNG or JPEG files", "none"));
        }
        Ok(ImageFolder { files, names, channels: Channels::Rgb, size: None })
    }

    /// Channels of the items.
    pub fn channels(mut self, channels: Channels) -> Self {
        self.channels = channels;
        self
    }

    /// Scales every image to this height and width (bilinear, with antialiasing). Without it all images must have one size.
    /// Errors: a size of 0, more pixels than [`limits::PIXELS`].
    pub fn resize(mut self, height: u32, width: u32) -> Result<Self> {
        if height == 0 || width == 0 {
            return Err(invalid("ImageFolder", "resize", "at least 1 x 1", format!("{height} x {width}")));
        }
        if u64::from(height) * u64::from(width) > limits::PIXELS {
            let expected = format!("at most {} pixels", limits::PIXELS);
            return Err(invalid("ImageFolder", "resize", expected, format!("{height} x {width}")));
        }
        self.size = Some((height, width));
        Ok(self)
    }

    /// Names of the classes, by id.
    pub fn class_names(&self) -> &[String] {
        &self.names
    }

    /// The file of an item.
    pub fn path(&self, i: usize) -> Option<&Path> {
        self.files.get(i).map(|(p, _)| p.as_path())
    }

    /// The class of an item.
    pub fn class(&self, i: usize) -> Option<i64> {
        self.files.get(i).map(|&(_, class)| class)
    }

    fn decode(&self, path: &Path) -> Result<DynamicImage> {
        // What a file is shows in its first bytes; many a PNG is called jpg.
        let reader = ImageReader::open(path)
            .and_then(ImageReader::with_guessed_format)
            .map_err(NnError::io("open", path))?;
        reader
            .decode()
            .map_err(|e| NnError::data(path, At::File, "an intact PNG or JPEG image", e.to_string()))
    }
}

impl ItemSource for ImageFolder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn classes(&self) -> usize {
        self.names.len()
    }

    fn item(&self, i: usize) -> Result<Item> {
        let Some((path, class)) = self.files.get(i) else {
            let expected = format!("an item below {}", self.files.len());
            return Err(invalid("ImageFolder", "i", expected, format!("{i}")));
        };
        let mut image = self.decode(path)?;
        if let Some((h, w)) = self.size {
            image = image.resize_exact(w, h, FilterType::Triangle);
        }
        let (h, w) = (image.height() as usize, image.width() as usize);
        let (c, pixels) = match self.channels {
            Channels::Gray => (1, image.into_luma8().into_raw()),
            Channels::Rgb => (3, image.into_rgb8().into_raw()),
        };
        let planes = (0..c).flat_map(|k| pixels.iter().skip(k).step_by(c).copied()).collect();
        let x = HostTensor::new(trefoil::DType::U8, &[c, h, w], planes)?;
        Ok(Item { x, y: HostTensor::from_slice(&[*class], &[])? })
    }
}
