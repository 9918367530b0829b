"""Files in folders and buckets, complete or absent; no word of what stands in them."""
