"""cloud-kit: the workers that finish what devices were unsure of."""
