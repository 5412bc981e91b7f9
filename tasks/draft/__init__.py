"""The EAGLE-3 draft model and its checkpoint layout, shared by training, export and benchmark."""
