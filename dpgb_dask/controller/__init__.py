"""The one door between private sums and released values: accounts, prices, noise. Auditable on its own."""
