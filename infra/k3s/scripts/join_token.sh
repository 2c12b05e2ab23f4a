# Run on a server: prints the token with which a node joins this cluster, in the form that pins its CA. Changes nothing.
# The one output that is a secret; it goes to standard output alone.
file=$DATA/server/token
[ -s "$file" ] || stop K3S-13 "no token in $file" "the token of a running server" "check that K3s runs on this node as a server"
token=$(head -n 1 "$file")
case $token in
K10*::server:?*) printf '%s\n' "$token" ;;
*) stop K3S-13 "a token of another form in $file" "K10<hash of the CA>::server:<password>" "restart k3s on this node: it writes the file anew" ;;
esac
