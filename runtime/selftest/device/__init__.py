"""What a user's GPUs do with all-reduces: are they right, and how long do they take."""
