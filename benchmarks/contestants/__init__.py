"""One module per contestant: ``receive`` listens, says where, and takes everything; ``send`` sends it there."""
