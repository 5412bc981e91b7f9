"""What asking a server takes beside HTTP: the job, the money, the reading of answers, and an orderly stop."""
