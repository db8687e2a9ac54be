// Package check proves that what deploy/ holds can be deployed: the chart renders to what the types
// of Kubernetes know and the program understands, values that can't work are refused with a sentence,
// HAProxy takes its configuration, and three processes that are run as the rendered Deployment says
// pass a rolling restart under load.
//
// It is a module of its own, so that Helm and Kubernetes stay out of the program's.
package check
