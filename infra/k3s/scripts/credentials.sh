# Run on a server: the program's own way into the API, a ServiceAccount whose token does not expire. A client
# certificate would, after a year, and would change the kubeconfig at each renewal. Revoked by deleting the Secret.
kubectl apply -f - >/dev/null <<'MANIFEST'
apiVersion: v1
kind: ServiceAccount
metadata: {name: fleet-pulumi, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: fleet-pulumi}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: fleet-pulumi, namespace: kube-system}]
---
apiVersion: v1
kind: Secret
metadata:
  name: fleet-pulumi
  namespace: kube-system
  annotations: {kubernetes.io/service-account.name: fleet-pulumi}
type: kubernetes.io/service-account-token
MANIFEST
filled() { [ -n "$(kubectl -n kube-system get secret fleet-pulumi -o 'jsonpath={.data.token}' 2>/dev/null)" ]; }
until_true 60 filled || stop K3S-13 "no token in Secret kube-system/fleet-pulumi" "one within 60 s" "check the controller manager"
kubectl -n kube-system get secret fleet-pulumi -o 'jsonpath={"{\"ca\": \""}{.data.ca\.crt}{"\", \"token\": \""}{.data.token}{"\"}"}'
