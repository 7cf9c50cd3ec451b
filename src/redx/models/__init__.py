"""What is trained and how it is put together: base, experts, router, composed model, and their files."""
