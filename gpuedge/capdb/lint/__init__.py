"""What is wrong with a database before it is published, and what it changes for known devices."""
