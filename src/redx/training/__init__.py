"""Training: one loop, what each expert learns from, and the stages base, banks, experts and router."""
