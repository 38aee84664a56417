//! configfs
