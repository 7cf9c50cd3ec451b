"""The method: rules, noise, certificates and metrics as pure functions of `Parts`."""
