"""What work that takes long needs: to tell how far it is, and to be closed however it ends."""
