// Tables in a buffer have ends, too.
// needs: inside/codebook
