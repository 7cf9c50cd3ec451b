"""The composed model: what users put together, ask, calibrate, save and share."""
