//! What a caller may keep of an image.

use crate::Layer;

/// What a caller keeps of a layer from step to step.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    /// Its record.
    pub layer: Layer,
    /// The lane of each channel, where the image lists the channel of each lane in bytes
    /// ([`ImageView::back`](crate::ImageView::back)): with it processors that permute vectors bring them back into order.
    pub back: Option<&'a [u8]>,
}
